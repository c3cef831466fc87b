"""Whether a folder's file system tells names apart that differ in letter case alone, or in the form of their accents
alone. Linux's do, and those of Windows and macOS mostly do not; but any of them may be mounted anywhere."""

from __future__ import annotations

import os
import secrets
import unicodedata
from pathlib import Path

from tvae.pipeline.files.names import owned_name

__all__ = ["SamePlaces", "folded", "tells_letter_case"]

_COMPOSED, _APART = "\u00e9", "e\u0301"
"""An accented letter in Unicode's two forms."""


def tells_letter_case(folder: Path) -> bool:
    """It is tried with a file, in the nearest folder that exists. False where none can be made."""
    token = secrets.token_hex(8)
    return _tells(folder, owned_name(token), owned_name(token).upper())


def folded(name: str) -> str:
    """Equal for names that some file system may take for one."""
    return name.lower() if name.isascii() else unicodedata.normalize("NFC", name.lower())


class SamePlaces:
    """Whether two paths of equal ``folded`` are one file's. Each folder is tried once."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, bool], bool] = {}

    def __call__(self, one: str, other: str) -> bool:
        """one, other: absolute. False where a folder tells them apart in which they part."""
        folder = os.path.commonpath((one, other))
        parts = (Path(path).relative_to(folder).parts for path in (one, other))
        for first, second in zip(*parts, strict=True):
            if first != second and self._tells_apart(folder, first, second):
                return False
            folder = os.path.join(folder, first)
        return True

    def _tells_apart(self, folder: str, first: str, second: str) -> bool:
        cased = unicodedata.normalize("NFC", first) != unicodedata.normalize("NFC", second)
        if (folder, cased) not in self._told:
            self._told[folder, cased] = tells_letter_case(Path(folder)) if cased else _tells_forms(Path(folder))
        return self._told[folder, cased]


def _tells_forms(folder: Path) -> bool:
    token = secrets.token_hex(8)
    return _tells(folder, owned_name(token + _COMPOSED), owned_name(token + _APART))


def _tells(folder: Path, name: str, other: str) -> bool:
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    made = folder / name
    try:
        with made.open("xb"):
            told = not os.path.lexists(folder / other)
        made.unlink()
    except OSError:
        return False
    return told
