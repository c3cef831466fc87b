"""An image's alpha beside its latents: as FORMAT.md says it is stored, and what is refused."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.tensor_write import save_file
from tvae.pipeline.latents import Geometry, LatentsMeta, PartRecord, alpha_text, open_latents, write_image_latents
from tvae.pipeline.latents.meta import to_strings

LATENTS = torch.arange(24, dtype=torch.float32).reshape(4, 2, 3)
LEVELS = np.random.default_rng(0).integers(0, 256, (13, 21), np.uint8)  # of the 21x13 picture of image_meta


def test_it_lies_in_the_metadata_as_the_page_says(tmp_path: Path, image_meta: LatentsMeta) -> None:
    path = tmp_path / "a.safetensors"
    write_image_latents(path, {"latents": LATENTS}, image_meta, alpha=alpha_text(LEVELS))
    with safe_open(path, framework="numpy") as file:
        assert [*file.keys()] == ["latents"]  # readers that do not know of alpha refuse any other tensor
        said = json.loads(file.metadata()["alpha"])
    found = np.frombuffer(zlib.decompress(base64.b64decode(said["levels"])), np.uint8).reshape(13, 21)
    assert (found == LEVELS).all()
    (part,) = open_latents(path)
    assert part.alpha is not None
    assert (part.alpha == LEVELS).all()
    assert open_latents(path).summary()["has_alpha"] is True


def test_without_it_the_file_has_no_such_key(tmp_path: Path, image_meta: LatentsMeta) -> None:
    path = tmp_path / "a.safetensors"
    write_image_latents(path, {"latents": LATENTS}, image_meta)
    with safe_open(path, framework="numpy") as file:
        assert "alpha" not in file.metadata()
    (part,) = open_latents(path)
    assert part.alpha is None
    assert open_latents(path).summary()["has_alpha"] is False


def packed(data: bytes) -> str:
    return json.dumps({"levels": base64.b64encode(data).decode()})


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"levels": 5}',
        '{"levels": "ä"}',
        '{"levels": "no base64!"}',
        packed(b"no zlib"),
        packed(zlib.compress(bytes(13 * 21 - 1))),
        packed(zlib.compress(bytes(13 * 21 + 1))),
        packed(zlib.compress(bytes(1 << 26))),
        packed(zlib.compress(bytes(13 * 21))[:-1]),
        packed(zlib.compress(bytes(13 * 21)) + b"more"),
    ],
)
def test_what_is_no_alpha_of_the_picture_is_damage(tmp_path: Path, image_meta: LatentsMeta, text: str) -> None:
    path = tmp_path / "a.safetensors"
    texts = to_strings(image_meta, PartRecord()) | {"alpha": text}
    save_file({"latents": LATENTS}, path, texts)  # its checksum is right
    with pytest.raises(InputError, match="alpha") as refused:
        list(open_latents(path))
    assert len(str(refused.value).splitlines()) == 1


def test_a_picture_that_claims_to_be_huge_is_refused_before_it_is_unpacked(
    tmp_path: Path, image_meta: LatentsMeta, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvae.pipeline.latents.alpha.zlib", None)
    huge = replace(image_meta, vae=replace(image_meta.vae, spatial_factor=4096), geometry=Geometry(3 * 4096, 1 << 17))
    texts = to_strings(huge, PartRecord()) | {"alpha": packed(b"")}
    save_file({"latents": torch.zeros(4, 32, 3)}, tmp_path / "a.safetensors", texts)
    with pytest.raises(InputError, match="larger than any that is read"):
        list(open_latents(tmp_path / "a.safetensors"))


def test_the_checksum_covers_it(tmp_path: Path, image_meta: LatentsMeta) -> None:
    path = tmp_path / "a.safetensors"
    write_image_latents(path, {"latents": LATENTS}, image_meta, alpha=alpha_text(LEVELS))
    other = LEVELS.copy()
    other[0, 0] ^= 1
    stored = json.loads(alpha_text(LEVELS) or "")["levels"].encode()
    changed = json.loads(alpha_text(other) or "")["levels"].encode()
    assert len(stored) == len(changed)
    path.write_bytes(path.read_bytes().replace(stored, changed))
    with pytest.raises(InputError, match="damaged"):
        list(open_latents(path))


def test_one_that_is_too_long_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvae.pipeline.latents.alpha.MOST_TEXT", 100)
    assert alpha_text(LEVELS) is None
    assert alpha_text(np.zeros((13, 21), np.uint8)) is not None
    assert alpha_text(np.broadcast_to(np.uint8(0), (1 << 15, 1 + (1 << 15)))) is None
