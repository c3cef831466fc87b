"""Outputs that are there already: whether to leave them, make them anew, or refuse to touch them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tvae.pipeline import latents
from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.job import Existing

__all__ = ["is_there", "latents_serve", "picture_serves", "reason_to_skip"]


def reason_to_skip(output: Path, existing: Existing, up_to_date: Callable[[], str | None]) -> str | None:
    """Why the item need not be done, None if it must be. ``up_to_date`` says why an output serves, if it does."""
    if existing == "overwrite" or not is_there(output):
        return None
    return "exists" if existing == "keep" else up_to_date()


def latents_serve(output: Path, fingerprint: str) -> str | None:
    """Latents say what they were made from, of which VAE, with which options."""
    return "done already" if latents.latents_done(output, fingerprint) else None


def is_there(output: Path) -> bool:
    """Whether a result stands under this name. A folder of latents counts once it is complete."""
    if output.suffix == latents.VIDEO_SUFFIX and output.is_dir():
        return (output / "index.json").is_file()
    return output.exists()


def picture_serves(output: Path, source: Path) -> str | None:
    """Pictures do not say what they were made from; one newer than its source is taken for its result.

    One that is older may be anything, so it is neither that nor replaced: :class:`InputError`.
    """
    made_from = source / "index.json" if source.is_dir() else source
    if output.stat().st_mtime_ns >= made_from.stat().st_mtime_ns:
        return "newer than its source; --overwrite makes it anew"
    raise InputError(f"{output} exists and is older than its source; pass --overwrite to replace it")
