"""What the inputs of a job lead to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tvae.pipeline.files.tar_members import Member
from tvae.pipeline.latents.foreign import ForeignLatents
from tvae.pipeline.stores import RemoteFile

__all__ = ["Found"]


@dataclass(frozen=True, slots=True)
class Found:
    """One thing to work on, or, with ``problem``, one that is known to be no use."""

    path: Path
    below: Path
    """The folder it lies in, from the folder or pattern on that it was found by; the output tree mirrors this."""
    name: str
    """Its name there."""
    problem: str | None = None
    foreign: ForeignLatents | None = None
    """What of the file it is, where another program wrote that."""
    own: int | None = None
    """See ``Listed``."""
    member: Member | RemoteFile | None = None
    """What it is of an archive; ``path`` is then that of the archive and the member's name in it. Or what it is of a
    store elsewhere; ``path`` is then its URL."""
    beside: tuple[Member, ...] = ()
    """Texts of the archive that belong to it."""

    @property
    def stem(self) -> str:
        return Path(self.name).stem
