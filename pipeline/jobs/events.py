"""What a run tells about itself while it runs, in order; ``to_json`` gives one flat object with ``type``.

::

    RunStarted  (item | DeviceLost)*  RunDone
    item:  ItemStarted (Progress | Notice)* (ItemDone | ItemFailed)  |  ItemSkipped  |  ItemPlanned  |  ItemFailed

Items are in work at the same time: events of one may come between those of another, and items end in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from tvae.pipeline.files.written import WrittenFile
from tvae.pipeline.jobs.busy import Load
from tvae.pipeline.jobs.metrics import Quality
from tvae.pipeline.media.formats import Kind

__all__ = [
    "DeviceLost",
    "Event",
    "ItemDone",
    "ItemEvent",
    "ItemFailed",
    "ItemPlanned",
    "ItemSkipped",
    "ItemStarted",
    "ItemVerified",
    "Made",
    "Notice",
    "Progress",
    "Retried",
    "RunDone",
    "RunStarted",
]


@dataclass(frozen=True)
class Event:
    """Root of all events."""

    type: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """Plain values only; paths as strings; fields that are None are left out."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.metadata.get("json", True)}
        return {"type": self.type} | {name: _plain(value) for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class RunStarted(Event):
    """Everything that can be refused beforehand has been checked."""

    type = "run_started"
    operation: str
    items: int
    vae: str | None = None
    dtype: str | None = None
    device: str | None = None
    vae_name: str | None = None
    """What a public VAE is called."""
    load: Callable[[], Load] | None = field(default=None, compare=False, repr=False, metadata={"json": False})
    """How busy the run's devices and threads are whenever it is asked, by any thread."""


@dataclass(frozen=True)
class ItemEvent(Event):
    """Of one item: its source, and its place among the items, from 0."""

    input: Path
    index: int


@dataclass(frozen=True)
class ItemStarted(ItemEvent):
    """``frames`` is the container's word and may be wrong or None."""

    type = "item_started"
    output: Path
    kind: Kind
    frames: int | None


@dataclass(frozen=True)
class Progress(ItemEvent):
    """``done`` frames of the item have been computed."""

    type = "progress"
    done: int
    total: int | None


@dataclass(frozen=True)
class Notice(ItemEvent):
    """Something about an item that the user should know and that does not stop it."""

    type = "warning"
    message: str


@dataclass(frozen=True)
class Retried(Notice):
    """The item was begun, and is done again."""


@dataclass(frozen=True)
class Made:
    """An output as its maker knows it. said: what its own header says of it, as JSON; source_bytes: None where they
    are to be asked for."""

    file: WrittenFile
    said: Mapping[str, Any]
    source_bytes: int | None = None


@dataclass(frozen=True)
class ItemDone(ItemEvent):
    """``output`` is complete under its final name."""

    type = "item_done"
    output: Path
    frames: int
    seconds: float
    quality: Quality | None = None
    made: Made | None = field(default=None, compare=False, repr=False, metadata={"json": False})
    """Of an image, in a job that is ``recorded``."""


@dataclass(frozen=True)
class ItemSkipped(ItemEvent):
    """``output`` was there already."""

    type = "item_skipped"
    output: Path
    reason: str


@dataclass(frozen=True)
class ItemPlanned(ItemEvent):
    """A dry run would make ``output`` from ``input``, or, if it ``exists``, look whether it is up to date. An exact one
    has looked: ``state`` is *new* or, for a ``reason``, *outdated*."""

    type = "item_planned"
    output: Path
    exists: bool
    state: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class ItemFailed(ItemEvent):
    """Nothing of this item has its name; complete parts of a clip may be kept for the next run.

    ``cause`` carries the traceback for whoever wants it.
    """

    type = "item_failed"
    error: str
    cause: BaseException | None = field(default=None, compare=False, repr=False, metadata={"json": False})


@dataclass(frozen=True)
class ItemVerified(ItemEvent):
    """An output was read whole by a batch: ``state`` is *fine*, *unchecked* or *stale*, with a ``reason``. One that is
    damaged or incomplete has failed."""

    type = "item_verified"
    state: str
    reason: str | None = None


@dataclass(frozen=True)
class DeviceLost(Event):
    """One of several devices does no more. What it was at work on fails; the others do the rest."""

    type = "device_lost"
    device: str
    error: str


@dataclass(frozen=True)
class RunDone(Event):
    """Last event of a run that was not interrupted. Every item is in one of the counts."""

    type = "run_done"
    done: int
    skipped: int
    failed: int
    planned: int
    """By a dry run."""
    seconds: float
    quality: Quality | None = None
    """Mean over the items that have one."""
    stages: dict[str, float] | None = None
    """Share of the time, 0 to 1, that reading, computing and writing of images took; None without threads, and where
    nothing but clips was done."""


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return value.to_json() if isinstance(value, Quality) else value
