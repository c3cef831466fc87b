"""Names, keys, types and shapes of musubi-tuner's safetensors files."""

from __future__ import annotations

import pytest
import torch
from cache_subjects import files_of

from tvae.pipeline.caches.spec import Piece
from tvae.pipeline.files.stored import Tensors

FLAT, TIMED = (6, 8), (1, 6, 8)
WANTED = {
    "hv": ("hunyuan_video", "latents_1x6x8_float16", (16, *TIMED)),
    "wan": ("wan", "latents_1x6x8_bfloat16", (16, *TIMED)),
    "f2d": ("flux_2_dev", "latents_6x8_float32", (128, *FLAT)),
    "f2k4b": ("flux_2_klein_4b", "latents_6x8_float32", (128, *FLAT)),
    "f2k9b": ("flux_2_klein_9b", "latents_6x8_float32", (128, *FLAT)),
    "qi": ("qwen_image", "latents_1x6x8_bfloat16", (16, *TIMED)),
    "kr2": ("krea2", "latents_1x6x8_bfloat16", (16, *TIMED)),
    "hv15": ("hunyuan_video_1_5", "latents_1x6x8_float16", (32, *TIMED)),
    "zi": ("z_image", "latents_1x6x8_float32", (16, *FLAT)),
    "i4": ("ideogram4", "latents_1x3x4_bfloat16", (128, 3, 4)),
}


@pytest.mark.parametrize("name", WANTED)
def test_golden(name: str) -> None:
    label, key, shape = WANTED[name]
    ((file, stored),) = files_of("musubi", name).items()
    assert file == f"sub/a.b_0100x0080_{name}.safetensors"
    assert isinstance(stored, Tensors)
    found = {key: tuple(value.shape) for key, value in stored.tensors.items()}
    assert found == {key: shape}
    assert stored.tensors[key].dtype == getattr(torch, key.rpartition("_")[2])
    assert stored.texts == {"architecture": label, "width": "100", "height": "80", "format_version": "1.0.1"}


@pytest.mark.parametrize("name", ["hv", "wan", "hv15"])
def test_a_piece_of_a_video(name: str) -> None:
    """The trainer knows of a video what it has scaled it to: the size of the bucket."""
    ((file, stored),) = files_of("musubi", name, piece=Piece(30, 9, 16.0), frames=3).items()
    assert file == f"sub/a.b_00030-009_0064x0048_{name}.safetensors"
    assert isinstance(stored, Tensors)
    ((key, value),) = stored.tensors.items()
    assert key.startswith("latents_3x6x8_")
    assert value.shape[1:] == (3, 6, 8)
    assert (stored.texts["width"], stored.texts["height"], stored.texts["frame_count"]) == ("64", "48", "9")
