"""Latents of a clip: the index is the commit, older results survive failures, foreign files are never touched."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from tvae.pipeline.errors import InputError
from tvae.pipeline.latents import LatentsMeta, VideoLatentsWriter, is_latents, latents_done, open_latents
from tvae.pipeline.latents.reader import LatentsReader

PTS = [0, 3003, 6006, 9500, 12000]


def latents(frames: int, value: float = 0.0) -> dict[str, torch.Tensor]:
    return {"latents": torch.full((4, frames, 2, 3), float(value)) + torch.arange(frames).view(1, -1, 1, 1)}


def write(folder: Path, meta: LatentsMeta, value: float = 0.0, streams: dict[str, Any] | None = None) -> None:
    """Two parts, of three and of two frames."""
    with VideoLatentsWriter(folder, meta) as writer:
        writer.add(latents(3, value), PTS[:3], [3003] * 3)
        writer.add(latents(2, value + 3), PTS[3:], [2500, None])
        if streams is not None:
            writer.streams_stem.with_suffix(".mka").write_bytes(b"packets of " + str(value).encode())
        writer.commit(streams)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def values(reader: LatentsReader) -> torch.Tensor:
    return torch.cat([part.tensors["latents"] for part in reader], dim=1)[0, :, 0, 0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out" / "clip.mp4.latents"


def test_there_and_back(folder: Path, clip_meta: LatentsMeta) -> None:
    record = {"files": ["streams.mka"], "packets": [{"pts": 5, "time_base": "1/48000"}]}
    write(folder, clip_meta, streams=record)
    assert names_in(folder) == ["000000.safetensors", "000001.safetensors", "index.json", "streams.mka"]
    reader = open_latents(folder)
    assert (reader.meta, reader.frames, len(reader), reader.streams) == (clip_meta, 5, 2, record)
    assert values(reader).tolist() == [0, 1, 2, 3, 4]
    assert [pts for part in reader for pts in part.pts] == PTS
    assert [d for part in reader for d in part.durations] == [3003, 3003, 3003, 2500, None]
    assert [(part.index, part.first_frame) for part in reader] == [(0, 0), (1, 3)]
    assert open_latents(folder / "index.json").path == folder


def test_each_part_is_complete_on_its_own(folder: Path, clip_meta: LatentsMeta, tmp_path: Path) -> None:
    write(folder, clip_meta)
    alone = tmp_path / "000001.safetensors"
    shutil.copy(folder / "000001.safetensors", alone)
    reader = open_latents(alone)
    (part,) = reader
    assert (reader.meta, reader.frames) == (clip_meta, 2)
    assert (part.first_frame, part.pts, values(reader).tolist()) == (3, (9500, 12000), [3, 4])


def test_video_vae_repeats_the_last_frame(folder: Path, clip_meta: LatentsMeta) -> None:
    meta = replace(clip_meta, vae=replace(clip_meta.vae, temporal_factor=4))
    with VideoLatentsWriter(folder, meta) as writer:
        writer.add(latents(3), list(range(7)), [1] * 7, repeated=2)
        writer.commit()
    (part,) = open_latents(folder)
    assert (part.repeated, len(part.pts), part.tensors["latents"].shape[1]) == (2, 7, 3)


def test_index_is_plain_json_with_everything(folder: Path, clip_meta: LatentsMeta) -> None:
    write(folder, clip_meta)
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    assert index["format"] == "tvae"
    assert index["fingerprint"] == clip_meta.fingerprint
    assert index["parts"][1] == {
        "file": "000001.safetensors",
        "first_frame": 3,
        "frames": 2,
        "bytes": (folder / "000001.safetensors").stat().st_size,
        "checksum": safe_open(folder / "000001.safetensors", "pt").metadata()["checksum"],
    }
    summary = open_latents(folder).summary()
    assert json.loads(json.dumps(summary)) == summary
    assert summary["parts"][0]["tensors"] == {"latents": {"dtype": "F32", "shape": [4, 3, 2, 3]}}
    assert (summary["values"], summary["frames"]) == (4 * 5 * 6, 5)


@pytest.mark.parametrize("written", [0, 1])
def test_without_commit_nothing_stays(folder: Path, clip_meta: LatentsMeta, written: int) -> None:
    with pytest.raises(InputError, match="decoder"), VideoLatentsWriter(folder, clip_meta) as writer:  # noqa: PT012
        for index in range(written):
            writer.add(latents(1), [index], [1])
        writer.streams_stem.with_suffix(".mka").touch()
        writer.state_path.touch()
        raise InputError("decoder")
    assert not folder.exists()


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_keeps_the_parts(
    folder: Path, clip_meta: LatentsMeta, complete: bool, error: type[BaseException]
) -> None:
    """Also where an older clip is complete, which stays."""
    if complete:
        write(folder, replace(clip_meta, dtype="bfloat16"), 50)
    with pytest.raises(error), VideoLatentsWriter(folder, clip_meta) as writer:  # noqa: PT012
        writer.add(latents(3), PTS[:3], [3003] * 3)
        writer.state_path.touch()
        raise error
    assert latents_done(folder, replace(clip_meta, dtype="bfloat16").fingerprint) == complete
    assert not latents_done(folder, clip_meta.fingerprint)
    with VideoLatentsWriter(folder, clip_meta) as writer:
        assert not writer.adopt(2)
        assert (writer.adopt(1), writer.parts, writer.frames) == (True, 1, 3)
        writer.add(latents(2, 3), PTS[3:], [2500, None])
        writer.commit()
    assert names_in(folder) == ["000000.safetensors", "000001.safetensors", "index.json"]
    assert values(open_latents(folder)).tolist() == [0, 1, 2, 3, 4]
    assert [pts for part in open_latents(folder) for pts in part.pts] == PTS


def test_an_interruption_before_the_first_part_leaves_nothing(folder: Path, clip_meta: LatentsMeta) -> None:
    with pytest.raises(KeyboardInterrupt), VideoLatentsWriter(folder, clip_meta):
        raise KeyboardInterrupt
    assert not folder.exists()


def test_only_parts_of_this_very_clip_are_adopted(folder: Path, clip_meta: LatentsMeta) -> None:
    killed = VideoLatentsWriter(folder, clip_meta)
    killed.add(latents(3), PTS[:3], [3003] * 3, repeated=1)
    killed.add(latents(1, 3), PTS[3:4], [2500])
    for other in (replace(clip_meta, tool="tvae 0.0.1"), replace(clip_meta, rotation=180)):
        assert not VideoLatentsWriter(folder, other).adopt(1)
    assert VideoLatentsWriter(folder, clip_meta).adopt(2)
    (folder / "000000.safetensors").rename(folder / "000002.safetensors")
    shutil.copy(folder / "000001.safetensors", folder / "000000.safetensors")
    assert not VideoLatentsWriter(folder, clip_meta).adopt(1)
    (folder / "000002.safetensors").rename(folder / "000000.safetensors")
    writer = VideoLatentsWriter(folder, clip_meta)
    damage_truncated(folder)
    assert not writer.adopt(2)
    assert writer.adopt(1)


def test_no_frames(folder: Path, clip_meta: LatentsMeta) -> None:
    with pytest.raises(InputError, match="no frames"), VideoLatentsWriter(folder, clip_meta) as writer:
        writer.commit()
    assert not folder.exists()


def test_non_finite_part_ends_the_clip(folder: Path, clip_meta: LatentsMeta) -> None:
    with pytest.raises(InputError, match="not finite"), VideoLatentsWriter(folder, clip_meta) as writer:  # noqa: PT012
        writer.add(latents(1), [0], [1])
        writer.add(latents(1, float("nan")), [1], [1])
    assert not folder.exists()


def test_killed_run_is_incomplete_and_started_afresh(folder: Path, clip_meta: LatentsMeta) -> None:
    killed = VideoLatentsWriter(folder, clip_meta)
    for index in range(3):
        killed.add(latents(1, 9), [index], [1])
    (folder / ".tvae-0123456789ab.tmp").write_bytes(b"half a part")
    (folder / "streams.mka").touch()
    (folder / ".tvae-0123456789ab.tmp").touch()
    assert is_latents(folder)
    assert not latents_done(folder, clip_meta.fingerprint)
    with pytest.raises(InputError, match="was interrupted"):
        open_latents(folder)
    write(folder, clip_meta)
    assert names_in(folder) == ["000000.safetensors", "000001.safetensors", "index.json"]
    assert values(open_latents(folder)).tolist() == [0, 1, 2, 3, 4]


def test_complete_clip_stays_until_its_successor_is_complete(folder: Path, clip_meta: LatentsMeta) -> None:
    write(folder, clip_meta, streams={"files": ["streams.mka"]})
    (folder / "notes.txt").write_text("mine")
    meta = replace(clip_meta, dtype="bfloat16")
    with pytest.raises(RuntimeError), VideoLatentsWriter(folder, meta) as writer:  # noqa: PT012
        writer.add(latents(1, 100), [0], [1])
        writer.streams_stem.with_suffix(".mka").write_bytes(b"new")
        assert values(open_latents(folder)).tolist() == [0, 1, 2, 3, 4]
        raise RuntimeError
    assert latents_done(folder, clip_meta.fingerprint)
    assert (folder / "streams.mka").read_bytes() == b"packets of 0.0"

    killed = VideoLatentsWriter(folder, meta)  # never committed nor aborted
    killed.add(latents(1, 200), [0], [1])
    assert latents_done(folder, clip_meta.fingerprint)

    with VideoLatentsWriter(folder, meta) as writer:
        writer.add(latents(4, 100), [0, 1, 2, 3], [1] * 4)
        writer.commit()
    assert names_in(folder) == ["000000.safetensors", "index.json", "notes.txt"]
    assert values(open_latents(folder)).tolist() == [100, 101, 102, 103]
    assert latents_done(folder, meta.fingerprint)
    assert not latents_done(folder, clip_meta.fingerprint)


@pytest.mark.parametrize(
    "name", ["holiday.jpg", "index.json", "000000.safetensors", "000000.safetensors.bak", "streams of thought.txt"]
)
def test_a_foreign_folder_is_refused(folder: Path, clip_meta: LatentsMeta, name: str) -> None:
    folder.mkdir(parents=True)
    (folder / name).write_text("{}")
    with pytest.raises(InputError, match=name):
        VideoLatentsWriter(folder, clip_meta)
    assert (folder / name).read_text() == "{}"
    with VideoLatentsWriter(folder, clip_meta, overwrite=True) as writer:
        writer.add(latents(1), [0], [1])
        writer.commit()
    assert open_latents(folder).frames == 1
    assert (folder / name).exists()


def test_a_file_in_the_way(folder: Path, clip_meta: LatentsMeta) -> None:
    folder.parent.mkdir()
    folder.touch()
    for overwrite in (False, True):
        with pytest.raises(InputError, match="not a folder"):
            VideoLatentsWriter(folder, clip_meta, overwrite=overwrite)


def test_an_empty_folder_and_clutter_are_fine(folder: Path, clip_meta: LatentsMeta) -> None:
    folder.mkdir(parents=True)
    (folder / ".DS_Store").touch()
    write(folder, clip_meta)
    assert open_latents(folder).frames == 5


def damage_missing(folder: Path) -> None:
    (folder / "000001.safetensors").unlink()


def damage_truncated(folder: Path) -> None:
    path = folder / "000001.safetensors"
    path.write_bytes(path.read_bytes()[:-5])


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
