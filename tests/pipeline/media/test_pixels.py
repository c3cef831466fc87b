import numpy as np
import pytest
import torch

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import frames_to_tensor, tensor_to_frames


def test_every_level_survives_the_way_there_and_back() -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(8, 32)
    frames = [np.stack([levels, levels[::-1], levels.T.reshape(8, 32)], axis=-1) for _ in range(2)]
    pixels = frames_to_tensor(frames)
    assert pixels.shape == (2, 3, 8, 32)
    assert pixels.dtype == torch.float32
    assert pixels.is_contiguous()
    np.testing.assert_allclose(pixels[0].numpy(), frames[0].transpose(2, 0, 1) / 127.5 - 1, atol=1e-6)
    assert all(np.array_equal(a, b) for a, b in zip(frames, tensor_to_frames(pixels), strict=True))


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
