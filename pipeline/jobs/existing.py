"""Outputs that are there already: whether to leave them, make them anew, or refuse to touch them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tvae.pipeline import latents
from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.job import Existing

__all__ = ["is_newer_picture", "is_there", "reason_to_skip"]


def reason_to_skip(output: Path, existing: Existing, up_to_date: Callable[[], bool]) -> str | None:
    """Why the item need not be done, None if it must be. ``up_to_date`` is asked only if it matters."""
    if existing == "overwrite" or not is_there(output):
        return None
    if existing == "keep":
        return "exists"
    return "done already" if up_to_date() else None


def is_there(output: Path) -> bool:
    """Whether a result stands under this name. A folder of latents counts once it is complete."""
    if output.suffix == latents.VIDEO_SUFFIX and output.is_dir():
        return (output / "index.json").is_file()
    return output.exists()


def is_newer_picture(output: Path, source: Path) -> bool:
    """True if ``output`` was written after ``source``.

    Pictures do not say what they were made from. One that is older than its source may be anything, so it is
    neither taken for a result nor replaced: :class:`InputError`.
    """
    made_from = source / "index.json" if source.is_dir() else source
    if output.stat().st_mtime_ns >= made_from.stat().st_mtime_ns:
        return True
    raise InputError(f"{output} exists and is older than its source; pass --overwrite to replace it")
