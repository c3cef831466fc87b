import numpy as np
import pytest
import torch

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import PixelRows, frames_to_tensor, levels_to_device, tensor_to_frames


def test_every_level_survives_the_way_there_and_back() -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(8, 32)
    frames = [np.stack([levels, levels[::-1], levels.T.reshape(8, 32)], axis=-1) for _ in range(2)]
    pixels = frames_to_tensor(frames)
    assert pixels.shape == (2, 3, 8, 32)
    assert pixels.dtype == torch.float32
    assert pixels.is_contiguous()
    np.testing.assert_allclose(pixels[0].numpy(), frames[0].transpose(2, 0, 1) / 127.5 - 1, atol=1e-6)
    assert all(np.array_equal(a, b) for a, b in zip(frames, tensor_to_frames(pixels), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_type_of_the_computation_is_one_rounding_away(dtype: torch.dtype) -> None:
    """Bit for bit what float32 pixels cast once are; frames may be read-only, or views of any kind."""
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (6, 10, 3), dtype=np.uint8) for _ in range(3)]
    frames[1].flags.writeable = False
    frames[2] = frames[2][::-1, :, ::-1]
    levels = torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)
    want = (levels.contiguous().float() / 127.5 - 1).to(dtype)
    got = frames_to_tensor(frames, "cpu", dtype)
    assert got.dtype == dtype
    assert torch.equal(got, want)
    clamped = ((want.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    for frame, expected in zip(tensor_to_frames(want), clamped.permute(0, 2, 3, 1).numpy(), strict=True):
        assert frame.flags.c_contiguous
        assert np.array_equal(frame, expected)


def test_values_are_clamped_and_halves_go_to_even() -> None:
    values = torch.tensor([-3.0, -1.0, 0.0, 1.0, 7.0, 1 / 255])  # 0 lies between 127 and 128
    got = tensor_to_frames(values.view(1, 1, 1, 6).expand(1, 3, 1, 6).to(torch.float64))[0][0, :, 0]
    assert got.tolist() == [0, 0, 128, 255, 255, 128]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    pixels = torch.zeros(1, 3, 2, 2)
    pixels[0, 1, 0, 1] = bad
    with pytest.raises(InputError, match="NaN or infinite"):
        tensor_to_frames(pixels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_between_levels_stay_as_they_are(dtype: torch.dtype) -> None:
    values = np.random.default_rng(0).uniform(-1, 1, (6, 10, 3)).astype(np.float32)
    want = torch.from_numpy(values).permute(2, 0, 1).unsqueeze(0).to(dtype)
    assert torch.equal(frames_to_tensor([values], "cpu", dtype), want)
    found = levels_to_device([torch.from_numpy(values)] * 2, torch.device("cpu"), dtype)
    assert torch.equal(found, want.expand(2, -1, -1, -1))
    rows = PixelRows(values, torch.device("cpu"), dtype).fetch(2, 5).result()
    assert rows is not None
    assert torch.equal(rows, want[:, :, 2:5])
