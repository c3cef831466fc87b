"""Sources of one cache whose names differ in nothing but the suffix: most trainers have one file for both of them.

A run refuses two such inputs. But a source may have been replaced since an earlier run (a.png by a.jpg), whose record
then tells of a file that is another's.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from dataclasses import replace
from pathlib import Path, PurePosixPath

from tvae.pipeline.caches.record import read_record, write_record
from tvae.pipeline.errors import InputError

__all__ = ["Twins", "known_at"]


class Twins:
    """The records of such sources, as they stood when one of their folder was first asked for. For many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[Path, dict[str, list[str]]] = {}

    def why_not(self, path: Path, name: str, place: Path) -> InputError:
        """Why a file that is there is not replaced by one of the source with the record at ``place``. name: the file's
        below the output folder."""
        for twin in self._of(place):
            if name in known_at(twin):
                return InputError(
                    f"'{path}' was made of {twin.stem}, whose name differs in nothing but the suffix; rename one, or "
                    "pass --overwrite where that one has gone"
                )
        return InputError(f"'{path}' exists and tvae did not write it; move it away, or pass --overwrite")

    def give_up(self, names: set[str], place: Path) -> None:
        """Files of these names, below the output folder, are of the source with the record at ``place`` from now on.
        `OSError`."""
        for twin in self._of(place):
            if known_at(twin).isdisjoint(names):
                continue
            record = read_record(twin)
            files = tuple(file for file in record.files if file.file not in names)
            stale = tuple(one for one in record.stale if one not in names)
            if files or stale:
                write_record(twin, replace(record, files=files, stale=stale))
            else:
                twin.unlink(missing_ok=True)

    def _of(self, place: Path) -> list[Path]:
        with self._lock:
            if place.parent not in self._names:
                self._names[place.parent] = _by_stem(place.parent)
            names = self._names[place.parent].get(_stem(place.name), [])
        return [place.with_name(name) for name in names if name != place.name]


def known_at(place: Path) -> set[str]:
    """Files that tvae wrote before for the source with this record."""
    try:
        return read_record(place).known
    except InputError:
        return set()


def _by_stem(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    try:
        for name in os.listdir(folder):
            found[_stem(name)].append(name)
    except OSError:
        pass  # there is none yet, or what is wrong with it is told when a record is written
    return found


def _stem(name: str) -> str:
    """Of a source's name, whose record has one suffix more."""
    return PurePosixPath(PurePosixPath(name).stem).stem.casefold()
