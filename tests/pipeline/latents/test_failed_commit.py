"""A clip whose folder cannot be completed: it has no index, and holds what the next run uses or nothing."""

from __future__ import annotations

import builtins
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from video_folders import PTS, latents, names_in, write

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


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE])
@pytest.mark.parametrize("older", [False, True])
def test_a_folder_that_cannot_be_opened_keeps_the_parts_alone(
    folder: Path, clip_meta: LatentsMeta, monkeypatch: pytest.MonkeyPatch, number: int, older: bool
) -> None:
    """Nothing below it can be opened from the moment on at which it is to be completed; files can be removed."""
    if older:
        write(folder, clip_meta, 7.0, streams={})
    before = {path.name: path.read_bytes() for path in folder.glob("*")}
    with monkeypatch.context() as patch:

        def spoil() -> None:
            for owner in (os, builtins):
                patch.setattr(owner, "open", denied(owner.open))

        def denied(original: Any) -> Any:
            def opened(path: Any, *more: Any, **options: Any) -> Any:
                if str(path).startswith(str(folder)):
                    raise OSError(number, os.strerror(number), str(path))
                return original(path, *more, **options)

            return opened

        with pytest.raises(OutputError, match=os.strerror(number)):
            commit(folder, clip_meta, spoil)
    work = folder / ".tvae-new" if older else folder
    assert names_in(work) == ["000000.safetensors", "000001.safetensors"]
    assert {path.name: path.read_bytes() for path in folder.glob("[!.]*") if older} == before
    commit(folder, clip_meta)
    assert names_in(folder) == ["000000.safetensors", "000001.safetensors", "index.json", "streams.mka"]


def test_a_folder_that_cannot_be_opened_after_its_index(
    folder: Path, clip_meta: LatentsMeta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is complete, and nothing of the way there is left."""
    write_index = video_folder.write_index

    def written(*args: Any) -> None:
        write_index(*args)
        monkeypatch.setattr(video_folder, "clear_folder", denied)

    def denied(path: Path, _ours: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(video_folder, "write_index", written)
    commit(folder, clip_meta, (folder / video_folder.STATE).touch)
    assert names_in(folder) == ["000000.safetensors", "000001.safetensors", "index.json", "streams.mka"]


@pytest.mark.parametrize("error", [OutputError("the disk is full"), KeyboardInterrupt()])
def test_streams_of_which_some_could_not_be_copied(folder: Path, clip_meta: LatentsMeta, error: BaseException) -> None:
    def spoil() -> None:
        raise error

    with pytest.raises(type(error)):
        commit(folder, clip_meta, spoil)
    assert names_in(folder) == ["000000.safetensors", "000001.safetensors"]


@pytest.mark.parametrize("opened", [True, False])
def test_streams_of_others_stay(
    folder: Path, clip_meta: LatentsMeta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: bool
) -> None:
    """A link took the folder's place, before it was to be opened or in that moment."""
    others = tmp_path / "others"
    others.mkdir()
    (others / "streams.mka").write_bytes(b"music")

    def full(*_: Any) -> None:
        folder.rename(tmp_path / "aside")
        folder.symlink_to(others, target_is_directory=True)
        if opened:
            monkeypatch.setattr(video_folder, "clear_folder", looped)
        raise OSError(errno.ENOSPC, "No space left on device")

    def looped(path: Path, _ours: Any) -> None:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))

    monkeypatch.setattr(video_folder, "write_index", full)
    with pytest.raises(OutputError, match="No space left"):
        commit(folder, clip_meta)
    assert (others / "streams.mka").read_bytes() == b"music"


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
