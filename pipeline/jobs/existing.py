"""Outputs that are there already: whether to leave them, make them anew, or refuse to touch them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tvae.pipeline import latents, media
from tvae.pipeline.errors import InputError, OutputError
from tvae.pipeline.files.atomic import check_readable
from tvae.pipeline.files.lock import one_writer
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import ItemSkipped
from tvae.pipeline.jobs.job import Existing
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.media.formats import Kind

__all__ = [
    *("DONE_ALREADY", "check_still_free", "is_there", "latents_serve", "picture_serves", "reason_to_skip", "skipped"),
    "undone",
]


DONE_ALREADY = "done already"
"""The reason to skip an item whose output was made from the same source, VAE and options."""


def skipped(
    item: Item, context: Context, up_to_date: Callable[[Path, Kind], str | None], kind: Kind | None = None
) -> ItemSkipped | None:
    """The item's last event where it need not be done. Of the source it needs no more than its name, size and time.

    kind: of the source; None where it has not been opened: any that its name allows. up_to_date: see
    ``reason_to_skip``.
    """
    existing = context.job.existing
    if existing == "overwrite" or (kind is None and existing == "keep" and len(item.kinds) > 1):
        return None
    for one in sorted(item.kinds) if kind is None else [kind]:
        try:
            output = context.claim(item, one)
            with context.standing(output) as there:
                reason = reason_to_skip(there, existing, lambda: up_to_date(there, one))  # noqa: B023, called here
        except (InputError, OSError):  # which is told when the source is opened
            continue
        if reason:
            return ItemSkipped(item.source, item.index, output, reason)
    return None


def reason_to_skip(output: Path, existing: Existing, up_to_date: Callable[[], str | None]) -> str | None:
    """Why the item need not be done, None if it must be. ``up_to_date`` says why an output serves, if it does."""
    if existing == "overwrite" or not is_there(output):
        return None
    return "exists" if existing == "keep" else up_to_date()


PATIENCE = 0.2
"""Seconds to wait for another run's output, before other items have their turn."""


@contextmanager
def undone(
    item: Item, output: Path, existing: Existing, up_to_date: Callable[[], str | None]
) -> Iterator[ItemSkipped | None]:
    """Holds the item's output while it is made; gives the item's last event where it need not be, by now.

    Raises :class:`OutputHeld` while another run makes it.
    """
    with one_writer(output, PATIENCE):
        reason = reason_to_skip(output, existing, up_to_date)
        yield ItemSkipped(item.source, item.index, output, reason) if reason else None


def latents_serve(output: Path, fingerprint: str) -> str | None:
    """Latents say what they were made from, of which VAE, with which options. `OutputError` for a file that cannot be
    read: it is not to be taken for another program's."""
    if not latents.latents_done(output, fingerprint):
        check_readable(output)
        return None
    if output.suffix == latents.VIDEO_SUFFIX:
        latents.tidy_done(output, fingerprint)
    return DONE_ALREADY


def is_there(output: Path) -> bool:
    """Whether a result stands under this name. A folder of latents counts once it is complete."""
    if output.suffix == latents.VIDEO_SUFFIX and output.is_dir():
        return (output / "index.json").is_file()
    return output.exists()


def picture_serves(output: Path, fingerprint: str) -> str | None:
    """Pictures and clips of ours carry their fingerprint. What does not may be the user's own, and is left alone. No
    option puts a file in the place of a folder, a device or a pipe: that is told as the item's failure. `OutputError`
    as ``latents_serve``.
    """
    if not output.is_file():
        return None
    found = media.read_fingerprint(output)
    if found is None:
        check_readable(output)
        return "it does not say that tvae made it from this input with these options; --overwrite replaces it"
    return DONE_ALREADY if found == fingerprint else None


def check_still_free(output: Path, existing: Existing, fingerprint: str) -> None:
    """For a picture or clip that is ready to get its name. `OutputError` where a file has come to stand there, since
    the item was looked up, that would have been left alone: another program's, and with *keep* any other result, too.
    """
    if existing == "overwrite" or not output.is_file():
        return
    found = media.read_fingerprint(output)
    if found != fingerprint and (found is None or existing == "keep"):
        check_readable(output)
        raise OutputError(
            f"cannot write {output}: a file was put there while this was computed; move it away, or pass --overwrite"
        )
