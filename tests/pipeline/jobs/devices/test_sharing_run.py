"""Several processes on one device, told by hand: who is waited for, who is given items, who is ended."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import ItemDone, RunStarted
from tvae.pipeline.jobs.busy import Busy
from tvae.pipeline.jobs.devices.messages import Ended, Failed, Finished, Give, NoMore, Raised, Ready
from tvae.pipeline.jobs.devices.process import Inbox
from tvae.pipeline.jobs.devices.shares import Shares
from tvae.pipeline.jobs.devices.sharing import _SharingRun
from tvae.pipeline.jobs.outputs import Item

READY = Ready("vae", "bfloat16", "cuda:0")


class Told:
    """A process that does what it is given at once, if it ever was ready."""

    def __init__(self, number: int, inbox: Inbox) -> None:
        self.number, self.device, self._inbox = number, "cuda:0", inbox
        self.given: list[int] = []
        self.killed = False

    def tell(self, message: object) -> None:
        if isinstance(message, Give):
            for item in message.items:
                self.given.append(item.index)
                done = ItemDone(item.source, item.index, item.source, 1, 0.0)
                self._inbox.put((self.number, Ended(item.index, (), done)))
        if isinstance(message, NoMore):
            self._inbox.put((self.number, Finished(1, {"compute": 1.0})))

    def kill(self) -> None:
        self.killed = True
        self._inbox.put((self.number, None))

    def dismiss(self) -> None:
        """Nothing more will be told."""

    def wait(self) -> None:
        """It is gone."""

    def cause(self) -> str:
        return "its process was ended by SIGKILL"


def items(count: int) -> list[Item]:
    kinds: Any = frozenset({"image"})
    return [Item(Path(f"{n}"), n, kinds, Path(), f"{n}", exact=False, to_latents=True) for n in range(count)]


class Run:
    def __init__(self, count: int, processes: int = 2) -> None:
        self.inbox: Inbox = Queue()
        self.events: list[Any] = []
        self.ended: list[int] = []
        self.processes = [Told(number, self.inbox) for number in range(processes)]
        self.shares = Shares(items(count), processes)
        context: Any = SimpleNamespace(
            job=SimpleNamespace(operation="encode"),
            emit=self.events.append,
            together=nullcontext,
            uploads=None,
            busy=Busy(0),
        )
        told = (self.shares, context, self.processes, self.inbox, lambda item, _event: self.ended.append(item.index))
        self.run = _SharingRun(*told)
        self.count = count

    def hear(self, number: int, message: object) -> None:
        self.inbox.put((number, message))


def failed(lost: bool = False) -> Failed:
    return Failed(Raised.of(UsageError("the GPU is busy")), lost)


def test_it_begins_with_the_first_and_ends_what_never_was_ready() -> None:
    run = Run(5)
    run.hear(1, READY)
    run.run.run(5)
    assert run.events == [RunStarted("encode", 5, "vae", "bfloat16", "cuda:0")]
    assert sorted(run.ended) == [0, 1, 2, 3, 4]
    assert [process.given for process in run.processes] == [[], [0, 1, 2, 3, 4]]
    assert [process.killed for process in run.processes] == [True, False]


def test_the_others_join() -> None:
    run = Run(400)
    run.hear(0, READY)
    run.hear(1, READY)
    run.run.run(400)
    assert sorted(run.ended) == [*range(400)]
    assert all(process.given and not process.killed for process in run.processes)


@pytest.mark.parametrize("lost", [False, True])
def test_one_that_cannot_compute(lost: bool) -> None:
    """What it would have had is the other's, which is the only one then."""
    run = Run(3)
    run.hear(0, failed(lost))
    run.hear(1, READY)
    run.run.run(3)
    assert sorted(run.ended) == [0, 1, 2]
    assert run.shares._alive == {1}
    assert run.processes[0].given == []


def test_one_that_cannot_compute_later() -> None:
    run = Run(3)
    run.hear(1, READY)
    run.hear(0, failed())
    run.run.run(3)
    assert sorted(run.ended) == [0, 1, 2]
    assert run.shares._alive == {1}


def test_who_is_waited_for() -> None:
    """One that hangs before it is ready is noticed, too, and what it says of its fault is told where it is the last."""
    run = Run(3)
    assert sorted(run.run._watched) == [0, 1]
    run.run._hear(0, READY)
    assert (sorted(run.run._watched), run.run._takers) == ([1], [0])
    alone = Run(3)
    alone.hear(0, failed())
    alone.hear(1, failed())
    with pytest.raises(UsageError, match="cuda:0: the GPU is busy"):
        alone.run.run(3)
    assert cast(Any, alone.events) == []
