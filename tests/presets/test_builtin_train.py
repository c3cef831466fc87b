"""The training script of the built-in VAE, for a few steps on a CPU."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image


@pytest.fixture(scope="module")
def train() -> Any:
    from tvae.presets.builtin import train

    return train


def png(colour: tuple[int, int, int], size: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "png")
    return buffer.getvalue()


def test_photos_come_from_folders_and_tars_in_the_order_of_their_names(train: Any, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "b.png").write_bytes(png((10, 20, 30), (400, 330)))
    (tmp_path / "photos" / "notes.txt").write_text("not a photo")
    with tarfile.open(tmp_path / "more.tar", "w") as tar:
        for name, colour in (("z2.png", (1, 2, 3)), ("z1.png", (4, 5, 6))):
            data = png(colour, (320, 320))
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    photos = train.read_photos([tmp_path / "more.tar", tmp_path / "photos"])
    assert photos.shape == (3, 3, 320, 320)
    assert [p[:, 0, 0].tolist() for p in photos] == [[10, 20, 30], [4, 5, 6], [1, 2, 3]]
    with pytest.raises(SystemExit, match="no photos"):
        train.read_photos([])


def test_crops_are_pieces_of_the_photos(train: Any) -> None:
    torch.manual_seed(0)
    y, x = torch.meshgrid(torch.arange(320) % 256, torch.arange(320) % 256, indexing="ij")
    photo = torch.stack([y, x, torch.full_like(x, 7)]).to(torch.uint8)[None]
    for transpose in (False, True):
        crops = ((train.random_crops(photo, 8, 64, transpose) + 1) * 127.5).round().to(torch.uint8)
        if transpose:
            crops = crops.transpose(2, 3)
        for rows, columns, constant in crops:
            assert (constant == 7).all()
            assert (rows == rows[:, :1]).all()
            assert (columns == columns[:1]).all()
            steps = (rows[1:, 0] - rows[:-1, 0]).tolist()  # uint8: minus one is 255
            assert set(steps) in ({1}, {255})


def test_orthogonalised_matrices_have_singular_values_near_one(train: Any) -> None:
    matrices = torch.randn(3, 16, 40, generator=torch.Generator().manual_seed(0))
    matrices[2, 8:] = 0  # as padded
    values = np.linalg.svd(train.orthogonalise(matrices).numpy(), compute_uv=False)
    assert (np.abs(values[:2] - 1) < 0.4).all()
    assert (np.abs(values[2, :8] - 1) < 0.4).all()
    assert (values[2, 8:] < 1e-6).all()


def test_group_norm_is_the_plain_one(train: Any) -> None:
    vae = train.build(torch.device("cpu"))
    norm = next(m for m in vae.modules() if isinstance(m, train.ChannelsLastGroupNorm))
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    x = torch.randn(2, norm.num_channels, 5, 7) * 3 + 1
    expected = torch.nn.functional.group_norm(
        x.double(), norm.num_groups, norm.weight.double(), norm.bias.double(), norm.eps
    )
    torch.testing.assert_close(norm(x).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """Steps this small only wait for each other's threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.usefixtures("_one_thread")
def test_training_learns_resumes_and_writes_a_model(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diffusers import AutoencoderKL

    small = {"block_out_channels": [16, 16, 16, 16], "norm_num_groups": 8}
    monkeypatch.setattr(train, "ARCHITECTURE", train.ARCHITECTURE | small)
    ramp = torch.arange(320) // 2
    photos = torch.stack([ramp.expand(320, 320), ramp[:, None].expand(320, 320), 200 - ramp.expand(320, 320)])
    photos = photos.to(torch.uint8)[None].repeat(54, 1, 1, 1)
    settings = train.Settings(crop=32, batch=4, warmup_steps=1, muon_rate=5e-3, adam_rate=5e-3)
    training = train.Training(photos, minutes=10, settings=settings, compiled=False)
    assert (len(training.photos), len(training.held_out)) == (53, 1)
    losses = [training.step().item() for _ in range(40)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.3

    training.save(tmp_path / "state.pt")
    again = train.Training(photos, minutes=10, settings=settings, compiled=False)
    again.load(tmp_path / "state.pt")
    next_losses = []
    for run in (training, again):
        torch.manual_seed(1)
        next_losses.append([run.step().item() for _ in range(2)])
    assert next_losses[1] == pytest.approx(next_losses[0], rel=1e-3)

    train.write_model(training.average, photos[:1], tmp_path)
    vae: Any = AutoencoderKL.from_pretrained(tmp_path, low_cpu_mem_usage=False, local_files_only=True)
    for name, value in training.average.state_dict().items():
        torch.testing.assert_close(vae.state_dict()[name].float(), value.half().float())
    assert vae.config.scaling_factor > 0
