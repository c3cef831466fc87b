"""One flipped bit anywhere in latents is an error, or changes nothing that is read."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tvae.pipeline.errors import InputError
from tvae.pipeline.latents import LatentsMeta, VideoLatentsWriter, open_latents, write_image_latents

LATENTS = torch.randn(4, 2, 3)


def flipped(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def read(path: Path) -> Any:
    """All that a decode uses; None where it is refused."""
    try:
        reader = open_latents(path)
        reader.check_streams()
        parts = [(p.tensors["latents"].numpy().tobytes(), p.pts, p.durations, p.first_frame) for p in reader]
    except InputError:
        return None
    return reader.meta, reader.streams, parts


def write_clip(folder: Path, meta: LatentsMeta) -> None:
    with VideoLatentsWriter(folder, meta) as writer:
        for start in (0, 3):
            writer.add({"latents": torch.randn(4, 3, 2, 3)}, range(start, start + 3), [1] * 3)
        writer.streams_stem.with_suffix(".mka").write_bytes(bytes(range(256)))
        writer.commit({"streams": [{"times": [[5, 0, 0, 1024]]}]})


def test_an_image(tmp_path: Path, image_meta: LatentsMeta) -> None:
    path = tmp_path / "a.safetensors"
    write_image_latents(path, {"latents": LATENTS}, image_meta)
    whole, rng = read(path), random.Random(0)
    bits = [*range(path.stat().st_size * 8 - LATENTS.nbytes * 8, path.stat().st_size * 8, 7)]
    for bit in bits + rng.sample(range(path.stat().st_size * 8), 300):
        flipped(path, bit)
        assert read(path) in (None, whole)
        flipped(path, bit)
    for bit in bits:
        flipped(path, bit)
        assert read(path) is None, "a value"
        flipped(path, bit)
    assert read(path) == whole


@pytest.mark.parametrize("name", ["000001.safetensors", "index.json", "streams.mka"])
def test_a_clip(name: str, tmp_path: Path, clip_meta: LatentsMeta) -> None:
    folder = tmp_path / "clip.latents"
    write_clip(folder, clip_meta)
    whole, rng, refused = read(folder), random.Random(0), 0
    for bit in rng.sample(range((folder / name).stat().st_size * 8), 200):
        flipped(folder / name, bit)
        found = read(folder)
        assert found in (None, whole)
        refused += found is None
        flipped(folder / name, bit)
    assert refused > 150
    assert read(folder) == whole


def test_parts_of_two_clips_are_not_one(tmp_path: Path, clip_meta: LatentsMeta) -> None:
    for name in "ab":
        write_clip(tmp_path / name, clip_meta)
    (tmp_path / "a" / "000001.safetensors").replace(tmp_path / "b" / "000001.safetensors")
    with pytest.raises(InputError, match="belongs to other latents"):
        list(open_latents(tmp_path / "b"))


def test_files_without_checksums_are_read(tmp_path: Path, image_meta: LatentsMeta, clip_meta: LatentsMeta) -> None:
    """As before there were any, and as other programs write them."""
    image, clip = tmp_path / "a.safetensors", tmp_path / "clip.latents"
    write_image_latents(image, {"latents": LATENTS}, image_meta)
    write_clip(clip, clip_meta)
    before = read(image), read(clip)
    for path in (image, *clip.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            texts, tensors = file.metadata(), {"latents": file.get_tensor("latents")}
        del texts["checksum"]
        save_file(tensors, path, texts)
    index = json.loads((clip / "index.json").read_text())
    del index["checksum"]
    for part in index["parts"]:
        del part["checksum"]
        part["bytes"] = (clip / part["file"]).stat().st_size
    (clip / "index.json").write_text(json.dumps(index))
    assert (read(image), read(clip)) == before


def test_the_checksum_is_the_one_of_the_page(tmp_path: Path, image_meta: LatentsMeta) -> None:
    """FORMAT.md says how to compute it."""
    path = tmp_path / "a.safetensors"
    write_image_latents(path, {"latents": LATENTS}, image_meta)
    with safe_open(path, framework="numpy") as file:
        texts, names = file.metadata(), sorted(file.keys())
        specs = [[name, file.get_slice(name).get_dtype(), file.get_slice(name).get_shape()] for name in names]
        checksum = texts.pop("checksum")
        head = json.dumps([texts, specs], sort_keys=True, separators=(",", ":")).encode()
        assert checksum == hashlib.sha256(head + b"".join(file.get_tensor(n).tobytes() for n in names)).hexdigest()
