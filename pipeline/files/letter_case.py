"""Whether a folder's file system tells names apart that differ in letter case alone. Linux's do, and those of Windows
and macOS mostly do not; but any of them may be mounted anywhere."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from tvae.pipeline.files.names import owned_name

__all__ = ["tells_letter_case"]


def tells_letter_case(folder: Path) -> bool:
    """It is tried with a file, in the nearest folder that exists. False where none can be made."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    made = folder / owned_name(secrets.token_hex(8))
    try:
        with made.open("xb"):
            told = not os.path.lexists(made.with_name(made.name.upper()))
        made.unlink()
    except OSError:
        return False
    return told
