"""A folder of a clip's latents that is damaged, incomplete or mixed is refused, and the reason is told."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from video_folders import damage_truncated, latents, write

from tvae.pipeline.errors import InputError
from tvae.pipeline.latents import LatentsMeta, VideoLatentsWriter, open_latents


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out" / "clip.mp4.latents"


def damage_missing(folder: Path) -> None:
    (folder / "000001.safetensors").unlink()


def damage_streams(folder: Path) -> None:
    (folder / "streams.mka").unlink()


def damage_index(folder: Path) -> None:
    path = folder / "index.json"
    path.write_bytes(path.read_bytes()[:200])


def damage_escape(folder: Path) -> None:
    path = folder / "index.json"
    path.write_text(path.read_text().replace('"000001.safetensors"', '"../000001.safetensors"'))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_missing, "'000001.safetensors' is missing"),
        (damage_truncated, "000001.safetensors' is damaged"),
        (damage_streams, "'streams.mka' is missing"),
        (damage_index, "damaged .*index.json"),
        (damage_escape, "not a name in its folder"),
    ],
)
def test_damage_is_named_on_opening(folder: Path, clip_meta: LatentsMeta, damage: Any, reason: str) -> None:
    write(folder, clip_meta, streams={})
    damage(folder)
    with pytest.raises(InputError, match=reason) as error:
        open_latents(folder)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_part_of_other_latents(folder: Path, clip_meta: LatentsMeta, tmp_path: Path) -> None:
    write(folder, clip_meta)
    other = tmp_path / "other.latents"
    write(other, replace(clip_meta, source=replace(clip_meta.source, mtime_ns=1_700_000_000_123_456_780)))
    shutil.copy(other / "000001.safetensors", folder / "000001.safetensors")
    parts = iter(open_latents(folder))
    next(parts)
    with pytest.raises(InputError, match=r"000001\.safetensors' belongs to other latents"):
        next(parts)


def test_parts_out_of_order(folder: Path, clip_meta: LatentsMeta) -> None:
    with VideoLatentsWriter(folder, clip_meta) as writer:
        for index in range(2):
            writer.add(latents(1), [index], [1])
        writer.commit()
    shutil.copy(folder / "000000.safetensors", folder / "000001.safetensors")
    with pytest.raises(InputError, match=r"000001\.safetensors'"):
        list(open_latents(folder))


def test_an_index_without_parts(folder: Path, clip_meta: LatentsMeta) -> None:
    write(folder, clip_meta)
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**index, "parts": []}))
    with pytest.raises(InputError, match="lists no parts"):
        open_latents(folder)


@pytest.mark.parametrize(("pts", "durations"), [([0, 1], [1] * 3), ([0, 1, 2], [1, 1])])
def test_timestamps_of_every_frame(
    folder: Path, clip_meta: LatentsMeta, pts: list[int | None], durations: list[int | None]
) -> None:
    with (
        VideoLatentsWriter(folder, clip_meta) as writer,
        pytest.raises(ValueError, match="timestamps"),
    ):
        writer.add(latents(3), pts, durations)


def test_parts_carry_the_timestamps_for_other_tools(folder: Path, clip_meta: LatentsMeta) -> None:
    write(folder, clip_meta)
    with safe_open(folder / "000001.safetensors", framework="numpy") as file:
        part = json.loads(file.metadata()["part"])
    assert part["pts"] == [9500, 12000]
    assert part["first_frame"] == 3
