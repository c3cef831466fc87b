"""Processes that keep what Python compiled, as those of most users do: without, every start compiles every import."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["keep_compiled_files"]


def keep_compiled_files(folder: Path) -> None:
    """In processes that this one starts from now on; below the folder, where the packages' own may not be written."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ.setdefault("PYTHONPYCACHEPREFIX", str(folder / "measured-compiled"))
