"""Names, keys and shapes of ai-toolkit's safetensors files."""

from __future__ import annotations

import base64
import hashlib

import pytest
from cache_subjects import files_of

from tvae.pipeline.files.stored import Tensors

SHAPES = {
    "sd1": ("sd1", (4, 6, 8)),
    "sdxl": ("sdxl", (4, 6, 8)),
    "sd3": ("sd3", (16, 6, 8)),
    "flux": ("flux1", (16, 6, 8)),
    "zimage": ("zimage", (16, 6, 8)),
    "wan21": ("wan21", (16, 1, 6, 8)),
    "wan22_14b": ("wan22_14b", (16, 1, 6, 8)),
    "qwen_image": ("qwen_image", (16, 6, 8)),
    "krea2": ("krea2", (16, 6, 8)),
    "flux2": ("flux2", (128, 6, 8)),
    "flux2_klein_4b": ("flux2_klein_4b", (128, 6, 8)),
    "flux2_klein_9b": ("flux2_klein_9b", (128, 6, 8)),
}


def digest(version: str, flipped: bool) -> str:
    """Of the facts as JSON, written by hand: keys in order."""
    flip = '"flip_x": true, ' if flipped else ""
    text = (
        '{"crop_height": 48, "crop_width": 64, "crop_x": 0, "crop_y": 1, "filename": "a.b.png", '
        f'{flip}"latent_space_version": "{version}", "latent_version": 1, "scale_to_height": 51, '
        '"scale_to_width": 64}'
    )
    return base64.urlsafe_b64encode(hashlib.md5(text.encode()).digest()).decode().replace("=", "")


@pytest.mark.parametrize("name", SHAPES)
def test_golden(name: str) -> None:
    version, shape = SHAPES[name]
    found = files_of("ai-toolkit", name, flip=True)
    assert [*found] == [f"sub/_latent_cache/a.b_{digest(version, flip)}.safetensors" for flip in (False, True)]
    for flipped, stored in enumerate(found.values()):
        assert isinstance(stored, Tensors)
        assert {key: tuple(value.shape) for key, value in stored.tensors.items()} == {"latent": shape}
        assert float(stored.tensors["latent"].max()) == flipped
        assert stored.texts["crop_width"] == "64"
        assert stored.texts["filename"] == "a.b.png"
        assert ("flip_x" in stored.texts) == bool(flipped)
