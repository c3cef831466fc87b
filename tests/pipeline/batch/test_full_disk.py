"""A manifest on a disk that is full for a while: the run goes on, and no line is lost or torn."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tvae.pipeline.batch.manifest import Manifest
from tvae.pipeline.batch.shared_manifest import SharedManifest
from tvae.pipeline.errors import OutputError


class Disk:
    """Has room for so many bytes of a manifest."""

    def __init__(self, patch: pytest.MonkeyPatch, room: int, number: int = errno.ENOSPC) -> None:
        self.room, opened = room, Path.open

        def limited(path: Path, mode: str = "r", *args: Any, **named: Any) -> Any:
            file = opened(path, mode, *args, **named)
            return Limited(file, self, number) if path.name == "manifest.jsonl" and "a" in mode else file

        patch.setattr(Path, "open", limited)


class Limited:
    def __init__(self, file: Any, disk: Disk, number: int) -> None:
        self._file, self._disk, self._number = file, disk, number

    def write(self, content: bytes) -> int:
        taken = min(len(content), self._disk.room)
        if not taken:
            raise OSError(self._number, os.strerror(self._number))
        self._disk.room -= taken
        written: int = self._file.write(content[:taken])
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Limited:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@pytest.fixture
def outputs(tmp_path: Path) -> list[Path]:
    found = [tmp_path / f"{number}.png" for number in range(5)]
    for path in found:
        path.write_bytes(path.name.encode())
    return found


def names(folder: Path) -> list[str]:
    return [json.loads(line)["output"] for line in (folder / "manifest.jsonl").read_text().splitlines()]


@pytest.fixture(params=[Manifest, SharedManifest])
def made(request: pytest.FixtureRequest) -> type[Manifest]:
    """Of a run alone, and of one of several."""
    found: type[Manifest] = request.param
    return found


@pytest.mark.parametrize("room", [0, 1, 100, 700])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_lines_wait_until_there_is_room(
    room: int, number: int, outputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: type[Manifest]
) -> None:
    with monkeypatch.context() as patch, made(tmp_path) as manifest:
        disk = Disk(patch, room, number)
        for path in outputs[:4]:
            manifest.done(path, {})
        disk.room = 1 << 20
        with manifest.together():
            manifest.done(outputs[4], {})
    assert names(tmp_path) == [path.name for path in outputs]
    assert [*tmp_path.glob(".tvae-*")] == []


@pytest.mark.parametrize("room", [0, 1, 700])
def test_a_disk_that_stays_full_is_told_at_the_end(
    room: int, outputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: type[Manifest]
) -> None:
    def fill() -> None:
        with monkeypatch.context() as patch, made(tmp_path) as manifest:
            Disk(patch, room)
            for path in outputs:
                manifest.done(path, {})
            told.append("went on")

    told: list[str] = []
    with pytest.raises(OutputError, match=r"cannot write .*manifest\.jsonl: No space left on device"):
        fill()
    assert told
    with made(tmp_path) as again:
        for path in outputs:
            if not again.knows(path):
                again.done(path, {})
    assert sorted(names(tmp_path)) == [path.name for path in outputs]


def test_other_errors_end_the_run_at_once(
    outputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: type[Manifest]
) -> None:
    told: list[str] = []

    def fill() -> None:
        with monkeypatch.context() as patch, made(tmp_path) as manifest:
            Disk(patch, 0, errno.EROFS)
            manifest.done(outputs[0], {})
            told.append("went on")

    with pytest.raises(OutputError, match="Read-only"):
        fill()
    assert not told


def test_no_half_line_stays_for_others(outputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of the file sees whole lines at any time; and what another run has told of meanwhile is not repeated."""
    with SharedManifest(tmp_path) as other:
        with monkeypatch.context() as patch, SharedManifest(tmp_path) as run:
            disk = Disk(patch, 150)
            for path in outputs[:3]:
                run.done(path, {})
                assert all(path.read_bytes()[-1:] == b"\n" for path in tmp_path.glob("manifest.jsonl"))
            disk.room = 1 << 20
            other.done(outputs[1], {})
            outputs[2].write_bytes(b"another one")
            other.done(outputs[2], {})
            assert sorted(names(tmp_path)) == ["1.png", "2.png"]
        assert other.knows(outputs[0])
    assert sorted(names(tmp_path)) == ["0.png", "1.png", "2.png"]
    with SharedManifest(tmp_path) as again:
        assert all(again.knows(path) for path in outputs[:3])
