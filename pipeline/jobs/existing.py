"""Outputs that are there already: whether to leave them, make them anew, or refuse to touch them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tvae.pipeline import latents, media
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


def picture_serves(output: Path, fingerprint: str) -> str | None:
    """Pictures and clips of ours carry their fingerprint. What does not may be the user's own, and is left alone."""
    found = media.read_fingerprint(output)
    if found is None:
        return "it does not say that tvae made it from this input with these options; --overwrite replaces it"
    return "done already" if found == fingerprint else None
