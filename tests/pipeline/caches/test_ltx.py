"""Names and contents of ltx-trainer's files, and how images get their size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cache_subjects import files_of

from tvae.pipeline.caches import TRAINERS, Buckets, Framing
from tvae.pipeline.caches.spec import BucketSettings, Piece
from tvae.pipeline.files.stored import write_stored


@pytest.mark.parametrize(("piece", "frames", "fps"), [(None, 1, 1.0), (Piece(0, 17, 23.976), 3, 23.976)])
def test_golden(tmp_path: Path, piece: Piece | None, frames: int, fps: float) -> None:
    ((name, stored),) = files_of("ltx", "ltx2", piece=piece, frames=frames).items()
    assert name == "latents/sub/a.b.pt"
    write_stored(tmp_path / name, stored)
    found = torch.load(tmp_path / name, weights_only=True)
    assert found.pop("latents").equal(torch.zeros(128, frames, 6, 8, dtype=torch.bfloat16))
    assert found == {"num_frames": frames, "height": 6, "width": 8, "fps": fps}


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ((1920, 1080), Framing((1024, 576), (128, 0, 768, 576), "cubic")),
        ((1080, 1920), Framing((768, 1365), (0, 394, 768, 576), "cubic")),
        ((768, 576), Framing((768, 576), (0, 0, 768, 576), "cubic")),
    ],
)
def test_images_cover_the_size(size: tuple[int, int], wanted: Framing) -> None:
    trainer = TRAINERS["ltx"]
    assert trainer.frame(size, BucketSettings(trainer.architectures[0], (768, 576), Buckets(), True)) == wanted
