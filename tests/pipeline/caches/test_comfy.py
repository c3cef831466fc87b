"""ComfyUI's .latent files."""

from __future__ import annotations

import pytest
import torch
from cache_subjects import files_of

from tvae.pipeline.caches import TRAINERS, Buckets, Framing
from tvae.pipeline.caches.spec import BucketSettings, Piece
from tvae.pipeline.files.stored import Tensors


@pytest.mark.parametrize(
    ("name", "piece", "frames", "shape"),
    [
        ("kl", None, 1, (1, 4, 6, 8)),
        ("wan", None, 1, (1, 16, 1, 6, 8)),
        ("wan", Piece(0, 9, 16.0), 3, (1, 16, 3, 6, 8)),
    ],
)
def test_golden(name: str, piece: Piece | None, frames: int, shape: tuple[int, ...]) -> None:
    ((file, stored),) = files_of("comfy", name, piece=piece, frames=frames).items()
    assert file == "sub/a.b.latent"
    assert isinstance(stored, Tensors)
    assert {key: tuple(value.shape) for key, value in stored.tensors.items()} == {
        "latent_tensor": shape,
        "latent_format_version_0": (0,),
    }
    assert {value.dtype for value in stored.tensors.values()} == {torch.float32}


def test_images_keep_their_size_unless_one_is_asked_for() -> None:
    trainer = TRAINERS["comfy"]
    settings = BucketSettings(trainer.architectures[0], (64, 64), Buckets(), True)
    assert trainer.frame((101, 83), settings) == Framing((101, 83), (2, 1, 96, 80), "area")
    settings = BucketSettings(trainer.architectures[0], (64, 64), Buckets(False), True)
    assert trainer.frame((128, 64), settings) == Framing((128, 64), (32, 0, 64, 64), "area")


def test_the_mean_is_stored() -> None:
    """ComfyUI drew a sample until June 2025."""
    assert {one.posterior for one in TRAINERS["comfy"].architectures} == {"mean"}
