"""A worker of the cluster, seen from the driver: an actor, and the process that it starts."""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Any

from tvae.pipeline.files.bell import POLL_SECONDS, join
from tvae.pipeline.files.process_end import end_of
from tvae.pipeline.jobs.devices import started
from tvae.pipeline.jobs.devices.messages import Begin
from tvae.pipeline.jobs.devices.process import END_SECONDS, Inbox

__all__ = ["ActorProcess", "Gone", "Hearing", "Placed"]


@dataclass(frozen=True)
class Placed:
    """The actor stands on a node. found: see ``Relay.place``."""

    found: dict[str, Any]


@dataclass(frozen=True)
class Gone:
    """The actor is no more, or will never be."""

    cause: str


class Hearing:
    """Waits for all actors' answers, in a thread of its own: what waits for a cluster cannot be interrupted."""

    def __init__(self) -> None:
        self._new: Queue[tuple[Any, Callable[[Any], None]]] = Queue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._hear, name="tvae-hears-ray", daemon=True)
        self._thread.start()

    def add(self, answer: Any, heard: Callable[[Any], None]) -> None:
        """heard: is called with what the answer is, or with the error of Ray in its place."""
        self._new.put((answer, heard))

    def end(self) -> None:
        """Nobody is called any more."""
        self._ended.set()
        join([self._thread])

    def _hear(self) -> None:
        import ray

        waiting: dict[Any, Callable[[Any], None]] = {}
        while not self._ended.is_set():
            with contextlib.suppress(Empty):
                answer, heard = self._new.get(block=not waiting, timeout=POLL_SECONDS)
                waiting[answer] = heard
                continue
            if not waiting:
                continue
            some, rest = ray.wait([*waiting], timeout=POLL_SECONDS)
            more = ray.wait(rest, num_returns=len(rest), timeout=0)[0] if some and rest else []
            for answer in (*some, *more):
                heard = waiting.pop(answer)
                try:
                    found = ray.get(answer)
                except Exception as error:  # whatever it is, the run is told that the actor does not answer
                    found = error
                heard(found)


class ActorProcess:
    """Does what ``DeviceProcess`` does, on some node. It is placed, then begun, then told and heard."""

    def __init__(
        self, number: int, node: str | None, actor: Any, place: tuple[str, str], inbox: Inbox, hearing: Hearing
    ) -> None:
        """node: its number among Ray's, where it has to be on that one. place: see ``Relay.place``."""
        self.number, self.node, self.device = number, node, f"worker {number + 1}"
        self._actor, self._folder, self._inbox, self._hearing = actor, place[0], inbox, hearing
        self._code: int | None = None
        self._silent = threading.Event()
        hearing.add(actor.place.remote(*place), self._placed)

    def _placed(self, found: Any) -> None:
        if isinstance(found, Exception):
            self._gone(found)
            return
        self.device = f"worker {self.number + 1} on {found['host']}"
        self._inbox.put((self.number, Placed(found)))

    def begin(self, begin: Begin) -> None:
        """Start the process."""
        self._actor.start.remote([*started.COMMAND[1:]], self._folder)
        self.tell(begin)
        self._ask()

    def _ask(self) -> None:
        self._hearing.add(self._actor.hear.options(concurrency_group="beside").remote(), self._heard)

    def _heard(self, answer: Any) -> None:
        if isinstance(answer, Exception):
            self._gone(answer)
            return
        messages, self._code = answer
        for data in messages:
            self._inbox.put((self.number, pickle.loads(data)))
        if self._code is None:
            self._ask()
        else:
            self._inbox.put((self.number, None))
            self._silent.set()

    def _gone(self, error: Exception) -> None:
        self._inbox.put((self.number, Gone(_why(error))))
        self._silent.set()

    def tell(self, message: object) -> None:
        """Without waiting. One that has gone is not told: its last message says so."""
        self._actor.tell.remote(pickle.dumps(message))

    def dismiss(self) -> None:
        """Nothing more will be told: it ends, at the next place where it can."""
        self._actor.dismiss.remote()

    def wait(self) -> None:
        """Until it has ended, ``END_SECONDS`` at most."""
        end = time.monotonic() + END_SECONDS
        while not self._silent.wait(POLL_SECONDS) and time.monotonic() < end:
            pass
        self.kill()

    def kill(self) -> None:
        """The process and its actor."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):  # one that cannot be asked has gone, or its node has
            ray.wait([self._actor.kill.options(concurrency_group="beside").remote()], timeout=1.0)
            ray.kill(self._actor)

    def cause(self) -> str:
        """Why a process that said nothing has gone."""
        code = self._code or 0
        return f"its process {'ended with' if code >= 0 else 'was ended by'} {end_of(code)}"


_REASONS = {
    "its node has died": "its node has died",
    "its worker process has died": "its actor's process has died",
    "its owner has died": "the node of the command has died",
    "is unavailable": "its node does not answer",
    "out of memory": "its node ran out of memory, and Ray ended it",
}
"""What Ray says among many lines, in few words."""


def _why(error: Exception) -> str:
    text = str(error)
    known = next((short for sign, short in _REASONS.items() if sign in text), None)
    return known or (text.strip() or type(error).__name__).splitlines()[0][:200]
