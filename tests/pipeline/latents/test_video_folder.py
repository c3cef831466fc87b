"""Latents of a clip: the index is the commit, older results survive failures, foreign files are never touched."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open
from video_folders import PTS, damage_truncated, latents, names_in, values, write

from tvae.pipeline.errors import InputError
from tvae.pipeline.latents import LatentsMeta, VideoLatentsWriter, is_latents, latents_done, open_latents


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
    (folder / ".tvae-1-01234567-0123456789ab.tmp").write_bytes(b"half a part")
    (folder / "streams.mka").touch()
    (folder / ".tvae-1-01234567-0123456789ab.tmp").touch()
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
