"""A clip whose folder cannot be completed: it has no index, and holds what the next run uses or nothing."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from video_folders import PTS, latents, names_in

from tvae.pipeline.errors import OutputError
from tvae.pipeline.latents import LatentsMeta, VideoLatentsWriter, video_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out" / "clip.mp4.latents"


def commit(folder: Path, meta: LatentsMeta, spoil: Any = None) -> None:
    with VideoLatentsWriter(folder, meta) as writer:
        writer.add(latents(3), PTS[:3], [3003] * 3)
        writer.add(latents(2, 3), PTS[3:], [2500, None])
        writer.streams_stem.with_suffix(".mka").write_bytes(b"packets")
        if spoil is not None:
            spoil()
        writer.commit({})


def test_a_full_disk_at_the_index_keeps_the_parts_alone(
    folder: Path, clip_meta: LatentsMeta, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(video_folder, "write_index", full)
        with pytest.raises(OutputError, match="No space left"):
            commit(folder, clip_meta)
    assert names_in(folder) == ["000000.safetensors", "000001.safetensors"]
    commit(folder, clip_meta)
    assert names_in(folder)[-2:] == ["index.json", "streams.mka"]


@pytest.mark.parametrize("content", [None, b"other bytes"])
def test_a_part_that_others_removed_or_replaced(folder: Path, clip_meta: LatentsMeta, content: bytes | None) -> None:
    """It would be missing from a folder that says it is complete."""

    def spoil() -> None:
        path = folder / "000000.safetensors"
        path.unlink()
        if content is not None:
            path.write_bytes(content)

    told = r"^cannot write .*: other programs changed its parts; run again$"
    with pytest.raises(OutputError, match=told):
        commit(folder, clip_meta, spoil)
    assert not folder.exists()
