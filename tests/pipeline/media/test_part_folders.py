"""What killed runs leave of films in parts, and which of it the next run in that folder removes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tvae.pipeline.files.atomic import temporary_path
from tvae.pipeline.files.lock import one_writer
from tvae.pipeline.media import Frame, PictureSpec, WriteOptions, open_parted_writer
from tvae.pipeline.media.part_folders import STATE, clear_parts, parts_folder, remove_parts_of_done

pytestmark = pytest.mark.skipif(os.name == "nt", reason="processes are asked for otherwise")

MINE, OTHER = "1" * 64, "2" * 64
WHOLE, STATED, DEAD, LIVING = "000000.packets", STATE, "dead", "living"


@pytest.fixture(scope="module")
def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def film(path: Path) -> None:
    like = PictureSpec(64, 64, Fraction(1, 25), Fraction(25))
    with open_parted_writer(path, like, WriteOptions(fingerprint=MINE)) as writer:
        writer.write(Frame(np.zeros((64, 64, 3), np.uint8), 0, 1))
        writer.commit()


def fill(folder: Path, what: set[str], gone: int) -> None:
    folder.mkdir()
    for one in what:
        path = temporary_path(folder / WHOLE) if one in (DEAD, LIVING) else folder / one
        if one == DEAD:
            path = folder / path.name.replace(f"-{os.getpid()}-", f"-{gone}-")
        path.touch()


def left(folder: Path, gone: int) -> set[str] | None:
    """None: not even the folder."""
    if not folder.is_dir():
        return None
    owners = {f".tvae-{gone}-": DEAD, f".tvae-{os.getpid()}-": LIVING}
    return {
        next((what for start, what in owners.items() if name.startswith(start)), name) for name in os.listdir(folder)
    }


def cases() -> Iterator[tuple[bool, str, set[str], set[str] | None]]:
    """Is the film there, whose parts they are, what is there of them, and what stays."""
    for fingerprint in (MINE, OTHER):
        yield True, fingerprint, {DEAD}, None
        yield True, fingerprint, {WHOLE, DEAD}, None
        yield True, fingerprint, set(), None
        yield False, fingerprint, {DEAD}, None
        yield False, fingerprint, set(), None
        yield False, fingerprint, {WHOLE, STATED, DEAD}, {WHOLE, STATED}
        yield False, fingerprint, {WHOLE, STATED, LIVING}, {WHOLE, STATED, LIVING}
    yield True, MINE, {WHOLE, STATED, DEAD}, None
    yield True, OTHER, {WHOLE, STATED, DEAD}, {WHOLE, STATED}
    yield True, OTHER, {WHOLE, STATED}, {WHOLE, STATED}


@pytest.mark.parametrize(("there", "fingerprint", "what", "stays"), list(cases()))
def test_what_no_run_can_go_on_with_goes(
    there: bool, fingerprint: str, what: set[str], stays: set[str] | None, gone: int, tmp_path: Path
) -> None:
    path = tmp_path / "film.mp4"
    if there:
        film(path)
    parts = parts_folder(path, fingerprint)
    fill(parts, what, gone)
    remove_parts_of_done(tmp_path)
    assert left(parts, gone) == stays


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("what", [set(), {WHOLE}, {LIVING}])
def test_a_film_that_is_being_written_keeps_its_parts(there: bool, what: set[str], gone: int, tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    if there:
        film(path)
    parts = parts_folder(path, OTHER)
    fill(parts, what, gone)
    with one_writer(path, 0):
        remove_parts_of_done(tmp_path)
    assert left(parts, gone) == what


def test_two_that_clear_at_once(gone: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that another has removed since it was seen is no failure."""
    path = tmp_path / "film.mp4"
    parts = parts_folder(path, MINE)
    fill(parts, {WHOLE, STATED, DEAD}, gone)
    unlink = os.unlink

    def twice(name: str, **where: int) -> None:
        unlink(name, **where)
        unlink(name, **where)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", twice)
        clear_parts(path)
    assert left(parts, gone) is None
