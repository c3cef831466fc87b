"""The hidden folders that hold the parts of films: their names, and what is in them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from tvae.pipeline.files.atomic import is_temporary
from tvae.pipeline.files.leftovers import is_left
from tvae.pipeline.files.lock import LOCK_SUFFIX, OutputHeld, one_writer
from tvae.pipeline.files.names import PREFIX
from tvae.pipeline.files.own_folder import clear_entries, clear_folder
from tvae.pipeline.media.fingerprint import read_video_tag

__all__ = ["STATE", "clear_parts", "part_name", "parts_folder", "remove_parts_of_done"]

STATE = "state.safetensors"
_PART = re.compile(r"\d{6}\.packets")
_FOLDER = re.compile(r"\.tvae-([0-9a-f]{8})-([0-9a-f]{0,8})\.parts")


def parts_folder(film: Path, fingerprint: str | None) -> Path:
    """Where the parts of a film are kept; for other options than those of the fingerprint it is another folder."""
    return film.with_name(f".tvae-{_family(film.name)}-{(fingerprint or '')[:8]}.parts")


def part_name(number: int) -> str:
    """The file's name."""
    return f"{number:06d}.packets"


def clear_parts(film: Path) -> None:
    """Remove all parts of films of this name, those of other options included. `OSError` where a file cannot be."""
    for folder, family, _ in _folders(film.parent):
        if family == _family(film.name):
            _clear(folder)


def remove_parts_of_done(folder: Path) -> None:
    """Remove the parts of films in a folder that have their names already: their run was killed after that. Those that
    were made with other options stay where a run with these could go on with them, without what was killed before it
    was a part.

    What cannot be removed stays, and so does what another run is at.
    """
    with contextlib.suppress(OSError):
        left = list(_folders(folder))
        films = {_family(name): folder / name for name in os.listdir(folder)} if left else {}
        for parts, family, fingerprint in left:
            film = films.get(family)
            if film is not None and film.is_file() and fingerprint:
                with contextlib.suppress(OutputHeld), one_writer(film, patience=0):
                    done = (read_video_tag(film) or "").startswith(fingerprint)
                    if done or not (parts / STATE).exists():  # without which no run can go on with them
                        _clear(parts)
            with contextlib.suppress(OSError):
                clear_entries(parts, lambda entry: is_temporary(entry.name) and is_left(entry))
                if not any(_is_lock(name, family) for name in os.listdir(folder)):
                    parts.rmdir()


def _family(film: str) -> str:
    return hashlib.sha256(film.encode(errors="surrogateescape")).hexdigest()[:8]


def _is_lock(name: str, family: str) -> bool:
    """Whether a file of this name is the lock of a film, whose writer may be about to fill its folder. Both begin with
    the same hash."""
    return name.startswith(PREFIX + family) and name.endswith(LOCK_SUFFIX)


def _folders(beside: Path) -> Iterator[tuple[Path, str, str]]:
    """Folders of parts, of which film, with which options."""
    for name in os.listdir(beside):
        found = _FOLDER.fullmatch(name)
        if found:
            yield beside / name, found[1], found[2]


def _clear(folder: Path) -> None:
    clear_folder(folder, _is_ours)
    with contextlib.suppress(OSError):  # a link, or it holds somebody else's files
        folder.rmdir()


def _is_ours(name: str) -> bool:
    return name == STATE or _PART.fullmatch(name) is not None or is_temporary(name)
