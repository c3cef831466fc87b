"""What a run and the processes of its devices say to each other, each message after its length.

::

    run       Begin             Give*                 (ClaimAnswer)  NoMore
    process          Ready  (Took | Told | Ended | Claim | Logged | Worked | Alive)*  Finished  |  Failed

Where processes share items, the first says ``Ordered`` besides, which the run hands to the others; they answer each
with ``Followed``.

Both ends are the same program, and nobody else has the pipes: what goes through them is pickled.
"""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tvae.pipeline import errors
from tvae.pipeline.errors import TvaeError
from tvae.pipeline.jobs.events import Event, ItemFailed
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.passing import OfAnotherProcess, may_pass
from tvae.pipeline.media.formats import Kind

if TYPE_CHECKING:
    from tvae.pipeline.session.orders import Order

__all__ = [
    "Alive",
    "Begin",
    "Claim",
    "ClaimAnswer",
    "Ended",
    "Failed",
    "Finished",
    "Followed",
    "Give",
    "Logged",
    "NoMore",
    "Open",
    "Ordered",
    "Raised",
    "Ranks",
    "Ready",
    "Told",
    "Took",
    "Worked",
    "receive",
    "send",
]

_LENGTH_BYTES = 8


@dataclass(frozen=True)
class Ranks:
    """Processes that share items: the number of this one, how many there are, and the file in which they find each
    other, in a folder of the run's own. asked_for: see ``must_share`` of ``Peers``."""

    rank: int
    count: int
    meeting: str
    asked_for: bool


@dataclass(frozen=True)
class Begin:
    """job: with the process's device. log_level: from which on messages of the log are passed on; None: nothing is.
    ranks: where processes share each item by rows, those; the first does the items, and the others what it tells them.
    """

    job: Job
    log_level: int | None
    ranks: Ranks | None = None


@dataclass(frozen=True)
class Give:
    """More items to do. apart: open their files in processes of their own (see ``Sandbox``)."""

    items: tuple[Item, ...]
    apart: bool = False


@dataclass(frozen=True)
class NoMore:
    """All items have ended."""


@dataclass(frozen=True)
class ClaimAnswer:
    """To the claim of this number: the path, or what was raised."""

    number: int
    answer: Path | Raised


@dataclass(frozen=True)
class Ready:
    """The device and the VAE can be used. The fields are those of ``RunStarted``, and the VAE's checksum."""

    vae: str | None
    dtype: str | None
    device: str | None
    weights_sha256: str | None = None
    vae_name: str | None = None


@dataclass(frozen=True)
class Open:
    """An order: calls are of this VAE from now on."""

    vae: str


@dataclass(frozen=True)
class Ordered:
    """From the first of processes that share items, and by way of the run to all others: to do the same."""

    order: Order | Open


@dataclass(frozen=True)
class Followed:
    """An order was carried out."""


@dataclass(frozen=True)
class Alive:
    """Something has happened since the last message of this kind."""


@dataclass(frozen=True)
class Worked:
    """So far: seconds of work by stage; threads that read, and as many that write."""

    threads: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class Took:
    """A thread of this number has begun to look at the item, and is done with the one that it took before."""

    index: int
    thread: int


@dataclass(frozen=True)
class Told:
    """Of an item at work."""

    event: Event


class Ended:
    """The last event of an item, and what else is told of it. more: the process has others to go on with."""

    def __init__(self, index: int, notices: tuple[str, ...], event: Event, *, more: bool = False) -> None:
        self.index, self.notices, self.more = index, notices, more
        cause = event.cause if isinstance(event, ItemFailed) else None
        self._event = replace(event, cause=None) if isinstance(event, ItemFailed) else event
        self._cause = None if cause is None else Raised.of(cause)

    @property
    def event(self) -> Event:
        """With the cause of a failure."""
        if isinstance(self._event, ItemFailed) and self._cause is not None:
            return replace(self._event, cause=self._cause.error())
        return self._event


@dataclass(frozen=True)
class Claim:
    """Asks for an item's output now that its kind is known, and its name had not told that. See ``Claims``."""

    number: int
    item: Item
    kind: Kind


@dataclass(frozen=True)
class Logged:
    """A message of the log."""

    level: int
    text: str


@dataclass(frozen=True)
class Finished:
    """The last message where all went well. The fields are those of ``Worked``."""

    threads: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class Failed:
    """The last message of a process that cannot go on. lost: it is its device that does not answer any more."""

    raised: Raised
    lost: bool = False


@dataclass(frozen=True)
class Raised:
    """An exception of another process. Those of tvae keep their class, and its fields. passes: see ``may_pass``."""

    kind: str
    message: str
    trace: str
    state: dict[str, Any] = field(default_factory=dict)
    passes: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        known = isinstance(error, TvaeError)
        trace = "".join(traceback.format_exception(error))
        return cls(type(error).__name__, str(error), trace, dict(vars(error)) if known else {}, may_pass(error))

    def error(self, where: str = "") -> Exception:
        """The like of it, to raise here; its cause is the other's traceback. where: what its message begins with."""
        kind = getattr(errors, self.kind, None)
        if isinstance(kind, type) and issubclass(kind, TvaeError):
            error: Exception = kind.__new__(kind, where + self.message)
            vars(error).update(self.state)
        else:
            error = RuntimeError(f"{where}{self.kind}: {self.message}")
        error.__cause__ = OfAnotherProcess(self.trace, passes=self.passes)
        return error


def send(file: IO[bytes], message: object) -> None:
    """`OSError` where nobody reads. Before each message are its length and one byte: may it wait on its way, for others
    that come with it?"""
    data = pickle.dumps(message)
    waits = message.more if isinstance(message, Ended) else isinstance(message, Took | Told | Worked | Alive | Logged)
    file.write(bytes([waits]) + len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    file.flush()


def receive(file: IO[bytes]) -> Any:
    """`EOFError` where nobody writes any more."""
    head = file.read(1 + _LENGTH_BYTES)
    size = int.from_bytes(head[1:], "big")
    data = file.read(size) if len(head) == 1 + _LENGTH_BYTES else b""
    if not data or len(data) < size:
        raise EOFError
    return pickle.loads(data)
