"""Folders of a run that is refused go again, and nobody who came meanwhile minds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tvae.pipeline.errors import OutputError
from tvae.pipeline.files import lock
from tvae.pipeline.files.lock import one_writer
from tvae.pipeline.files.new_folders import gone_if_empty


@pytest.mark.parametrize("there", [None, "a", "a/b", "a/b/c"])
@pytest.mark.parametrize("left", [None, "a/file", "a/b/c/file"])
def test_only_what_is_new_and_empty_goes(tmp_path: Path, there: str | None, left: str | None) -> None:
    if there is not None:
        (tmp_path / there).mkdir(parents=True)
    before = {*tmp_path.rglob("*")}

    def refused() -> None:
        with gone_if_empty(tmp_path / "a/b/c"):
            (tmp_path / "a/b/c").mkdir(parents=True, exist_ok=True)
            if left is not None:
                (tmp_path / left).touch()
            raise KeyError

    with pytest.raises(KeyError):
        refused()
    kept = set[Path]() if left is None else {tmp_path / left, *(tmp_path / left).parents}
    assert {*tmp_path.rglob("*")} == before | (kept - {tmp_path, *tmp_path.parents})


def test_what_did_well_stays(tmp_path: Path) -> None:
    with gone_if_empty(tmp_path / "a/b"):
        (tmp_path / "a/b").mkdir(parents=True)
    assert (tmp_path / "a/b").is_dir()


def test_a_folder_that_goes_before_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run, which is refused, removes the folder that it has made."""
    folder, left = tmp_path / "new", 3
    plain = os.open

    def late(path: Any, *rest: Any) -> int:
        nonlocal left
        if Path(path).parent == folder and left:
            left -= 1
            folder.rmdir()
        return plain(path, *rest)

    monkeypatch.setattr(lock.os, "open", late)
    with one_writer(folder / "x", 5.0):
        assert [path.suffix for path in folder.iterdir()] == [lock.LOCK_SUFFIX]
    assert left == 0


def test_a_folder_in_which_nothing_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in /proc. Nobody else has it."""

    def none(*_: Any) -> int:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(lock.os, "open", none)
    with pytest.raises(OutputError, match="No such file or directory"), one_writer(tmp_path / "x", 5.0):
        pass
