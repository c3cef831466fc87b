"""Threads that make each call together: the caller's, and one more for each further device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, partial
from typing import TypeVar

import torch

from tvae.pipeline.engine.run.give_back import beside
from tvae.pipeline.engine.run.thread_exchange import Meeting
from tvae.pipeline.settings.modes import plain_modes

__all__ = ["RankThreads"]

T = TypeVar("T")


class RankThreads:
    """See the module's docstring. They end with the object; what libraries keep for a thread is kept from call to call.

    The first device's stream that the caller has chosen is the one that its inputs come on and its results go to; other
    threads use their own, which are not the default ones (see ``give_back``).
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.meeting, self._devices = Meeting(len(devices)), devices
        self._process, self._threads = 0, list[ThreadPoolExecutor]()

    def run(self, do: Callable[[int], T]) -> T:
        """What ``do(0)`` gives, while each other thread does it with its number. Raises what the first that fails
        raises, when all have ended."""
        if self._process != os.getpid():  # a process that was forked has none
            self._process = os.getpid()
            names = [f"tvae-device-{n}" for n in range(1, len(self._devices))]
            self._threads = [ThreadPoolExecutor(1, thread_name_prefix=name) for name in names]
        self.meeting.begin()
        default, begun = torch.get_default_device(), self._event()
        futures = [pool.submit(self._other, do, n, default, begun) for n, pool in enumerate(self._threads, 1)]
        try:
            result = self._joined(partial(self._first, do), 0)
            wait(futures)
            if self.meeting.error is not None:
                raise self.meeting.error
            self._await([future.result() for future in futures])
        except BaseException as found:  # whatever it is: that of the first to fail comes out
            wait(futures)
            futures.clear()  # an error holds this frame, and would be held by it
            error, self.meeting.error = self.meeting.error, None
            try:
                if error is None or error is found:
                    raise
                raise error from None
            finally:
                del error
        return result

    def _await(self, read: Sequence[torch.cuda.Event | None]) -> None:
        """Have the caller's stream wait until others have read what is the caller's."""
        for event in read:
            if event is not None:
                torch.cuda.current_stream(self._devices[0]).wait_event(event)

    def _joined(self, do: Callable[[], T], rank: int) -> T:
        try:
            result = do()
        except BaseException as error:  # whatever it is, the others wait for this one in vain
            if rank:
                error.add_note(f"(on {self._devices[rank]}, one of the devices that share the call)")
            self.meeting.leave(rank, error)
            raise
        self.meeting.leave(rank)
        return result

    def _first(self, do: Callable[[int], T]) -> T:
        with _on(self._devices[0]):
            return do(0)

    def _other(
        self, do: Callable[[int], T], rank: int, default: torch.device, begun: torch.cuda.Event | None
    ) -> torch.cuda.Event | None:
        """In a thread of its own. Gives when it is done with what the caller's device has."""

        def its() -> torch.cuda.Event | None:
            with ExitStack() as modes:
                modes.enter_context(beside(self._devices[0]))
                modes.enter_context(_on_its_stream(self._devices[rank]))  # and so on the device
                modes.enter_context(plain_modes(self._devices[rank]))
                if torch.get_default_device() != default:
                    modes.enter_context(default)
                if begun is not None:
                    torch.cuda.current_stream(self._devices[0]).wait_event(begun)
                do(rank)
                return self._event()

        return self._joined(its, rank)

    def _event(self) -> torch.cuda.Event | None:
        """Of the first device's work that this thread has asked for."""
        first = self._devices[0]
        return torch.cuda.current_stream(first).record_event() if first.type == "cuda" else None


@contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Libraries that are told no device take the current one."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        yield


def _on_its_stream(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.stream(_stream_of(device)) if device.type == "cuda" else nullcontext()


@cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """The same for all that share calls, so that they use each other's memory again."""
    return torch.cuda.Stream(device)
