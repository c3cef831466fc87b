"""Ranks that are threads of one process, one for each device: what they send is copied from device to device.

A sender goes on when the receiver has what it sent, so that no memory is used again too early. Nobody waits for what
will not come: a thread that fails, or ends while others still expect something of it, ends the call in all, and so do
threads that all wait for one another.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tvae.pipeline.engine.run.exchange import Message
from tvae.pipeline.errors import RankError, TvaeError

__all__ = ["Meeting", "ThreadExchange"]


@dataclass
class _Sent:
    """A tensor on its way. ready: on a CUDA device, when it is computed; copied: when it has been read."""

    value: Tensor
    ready: torch.cuda.Event | None
    copied: torch.cuda.Event | None = None
    taken: bool = False


class Meeting:
    """Of so many threads, for one call after the other."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.error: BaseException | None = None
        """What the first thread raised that failed of itself."""
        self.refused: dict[int, TvaeError] = {}
        """What threads found before they computed, and said that they had found."""
        self._changed = threading.Condition()
        self._boxes: defaultdict[tuple[int, int], deque[_Sent]] = defaultdict(deque)
        self._left: set[int] = set()
        self._waiting: dict[int, Callable[[], bool]] = {}

    def begin(self) -> None:
        """A call, in which no thread is yet."""
        self._boxes.clear()
        self._left.clear()
        self._waiting.clear()
        self.refused.clear()
        self.error = None

    def leave(self, rank: int, error: BaseException | None = None) -> None:
        """A thread is done, or has failed."""
        with self._changed:
            self._left.add(rank)
            if self.error is None and not isinstance(error, RankError):
                self.error = error
            self._changed.notify_all()

    def put(self, sender: int, receiver: int, sent: _Sent) -> None:
        """Into the receiver's box."""
        with self._changed:
            self._boxes[sender, receiver].append(sent)
            self._changed.notify_all()

    def take(self, sender: int, receiver: int) -> _Sent:
        """The next that was sent. Raises RankError where nothing will come."""
        with self._changed:
            box = self._boxes[sender, receiver]
            self._wait(receiver, lambda: bool(box), sender)
            return box.popleft()

    def tell_taken(self, sent: _Sent, copied: torch.cuda.Event | None) -> None:
        """Its receiver has copied it, or has told its device to."""
        with self._changed:
            sent.copied, sent.taken = copied, True
            self._changed.notify_all()

    def wait_taken(self, sent: _Sent, sender: int, receiver: int) -> None:
        """Until its receiver has. Raises RankError where it never will."""
        with self._changed:
            self._wait(sender, lambda: sent.taken, receiver)

    def _wait(self, rank: int, there: Callable[[], bool], other: int) -> None:
        """With the condition's lock. rank: the thread that waits, for something that ``other`` does."""
        self._waiting[rank] = there
        while not there() and self.error is None and other not in self._left and not self._stuck():
            self._changed.wait()
        del self._waiting[rank]
        if self.error is not None or not there():
            self._changed.notify_all()  # of those that wait for one another the first goes, and then all
            raise RankError(f"device {other + 1} of {self.ranks} has left the call that they share")

    def _stuck(self) -> bool:
        """Does everybody wait, and for nothing that is there?"""
        here = set(range(self.ranks)) - self._left
        return here <= self._waiting.keys() and not any(there() for there in self._waiting.values())


class ThreadExchange:
    """Of the thread that is ``rank`` among the first ``ranks`` of a meeting. See ``Exchange``."""

    recordable = False

    def __init__(self, meeting: Meeting, rank: int, ranks: int) -> None:
        self.rank, self.ranks, self._meeting = rank, ranks, meeting
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def swap(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """See ``Exchange``."""
        given = [(peer, self._give(peer, value)) for peer, value in sends]
        for peer, value in receives:
            self._fill(value, peer)
        for peer, sent in given:
            self._meeting.wait_taken(sent, self.rank, peer)
            if sent.copied is not None:  # what comes next on this device may overwrite it
                torch.cuda.current_stream(sent.value.device).wait_event(sent.copied)

    def gather(self, part: Tensor) -> list[Tensor]:
        """See ``Exchange``."""
        others = [n for n in range(self.ranks) if n != self.rank]
        found = [part if n == self.rank else torch.empty_like(part) for n in range(self.ranks)]
        self.swap([(n, part) for n in others], [(n, found[n]) for n in others])
        return found

    def broadcast(self, value: Tensor) -> None:
        """See ``Exchange``."""
        if self.rank:
            self.swap([], [(0, value)])
        else:
            self.swap([(n, value) for n in range(1, self.ranks)], [])

    def _give(self, peer: int, value: Tensor) -> _Sent:
        ready = torch.cuda.current_stream(value.device).record_event() if value.is_cuda else None
        sent = _Sent(value, ready)
        self._meeting.put(self.rank, peer, sent)
        return sent

    def _fill(self, value: Tensor, peer: int) -> None:
        sent = self._meeting.take(peer, self.rank)
        found = sent.value
        if found.shape != value.shape or found.dtype != value.dtype:
            told = f"{found.dtype} {list(found.shape)} of device {peer + 1}, not {value.dtype} {list(value.shape)}"
            raise AssertionError(f"device {self.rank + 1} got {told.replace('torch.', '')}")
        if sent.ready is None:
            value.copy_(found)
            self._meeting.tell_taken(sent, None)
            return
        if found.device not in self._streams:
            self._streams[found.device] = torch.cuda.Stream(found.device)
        stream = self._streams[found.device]
        with torch.cuda.stream(stream):  # PyTorch copies on a stream of the source, which the target's waits for
            stream.wait_event(sent.ready)
            value.copy_(found, non_blocking=True)
            self._meeting.tell_taken(sent, stream.record_event())
