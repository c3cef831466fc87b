"""A single image on its way through a run: read in one thread, computed in the caller's, written in another."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from tvae.pipeline.jobs.events import Event, ItemDone, Made
from tvae.pipeline.jobs.metrics import Quality
from tvae.pipeline.jobs.outcome import Finished
from tvae.pipeline.jobs.outputs import Item

if TYPE_CHECKING:
    from tvae.pipeline.jobs.clips import ClipRun
    from tvae.pipeline.session.model import Model

__all__ = ["Finish", "Hold", "Operation", "Picture", "Results", "between", "moment", "on_host"]

Hold = Callable[[int], None]
"""Asks for room for so many bytes before they are made; see ``Room``."""


Finish = Callable[["Picture", list[Tensor]], Finished]
"""Writes a picture's output from its results on the CPU; in any thread."""


@dataclass
class Picture:
    """An image that has been read. ``values``, on the CPU: uint8 levels [H, W, 3], those of it and of its mirror image
    [2, H, W, 3], or raw latents [C, t, h, w]."""

    item: Item
    output: Path
    vae: str
    values: Tensor
    pixels: int
    """Of the picture that goes into the VAE or comes out of it."""
    finish: Finish
    alone: bool = False
    """It shares no call: of a video VAE, whose calls are clips."""
    shows_progress: bool = True
    waiting_bytes: int | None = None
    """Of the run's room, from when it is read to its end; None: as many as reading it took."""
    begin: float = field(default_factory=time.monotonic)
    held: int = 0
    """Bytes of the run's room."""

    @property
    def key(self) -> Hashable:
        """Pictures of one key can share a call."""
        return self.vae, tuple(self.values.shape), self.values.dtype

    def finished(self, notices: Sequence[str], quality: Quality | None = None, made: Made | None = None) -> Finished:
        """Its output is complete."""
        seconds = time.monotonic() - self.begin
        return Finished(notices, ItemDone(self.item.source, self.item.index, self.output, 1, seconds, quality, made))


def on_host(values: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """A copy of values, in memory that a GPU fetches from beside its work."""
    values = values if isinstance(values, Tensor) else torch.from_numpy(np.require(values, requirements="W"))
    return _empty(values, device).copy_(values)


def _empty(like: Tensor, device: torch.device) -> Tensor:
    """On the CPU; pinned for a GPU, and no other than this one has a context for it."""
    if device.type != "cuda":
        return torch.empty(like.shape, dtype=like.dtype)
    with torch.cuda.device(device):
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)


class Results:
    """What a call gave for its pictures, on its way to the CPU.

    Results on a GPU are copied into pinned memory beside what the device does next; whoever wants them waits.
    """

    def __init__(self, tensors: Sequence[Tensor], device: torch.device, began: Began) -> None:
        """tensors: [N, ...] for N pictures, on the device that computed them or on the CPU already. began: its
        ``moment`` before."""
        self._began, self._ended = began, began
        if tensors[0].device.type != "cuda":
            self._tensors = [tensor.cpu() for tensor in tensors]
        else:
            self._tensors = [_empty(tensor, tensor.device) for tensor in tensors]
            for copy, tensor in zip(self._tensors, tensors, strict=True):
                copy.copy_(tensor, non_blocking=True)
        self._ended = moment(device)

    @property
    def on_its_way(self) -> bool:
        """Is the device at work on it?"""
        return isinstance(self._ended, torch.cuda.Event)

    def wait(self) -> None:
        """Until the results are there, and so the device is done with the call."""
        if isinstance(self._ended, torch.cuda.Event):
            self._ended.synchronize()

    @property
    def seconds(self) -> float:
        """That the device took for the call; once it is done."""
        return between(self._began, self._ended)

    def of(self, number: int) -> list[Tensor]:
        """The results for one picture of the call; waits for them."""
        self.wait()
        return [tensor[number] for tensor in self._tensors]


Began = float | torch.cuda.Event


def moment(device: torch.device) -> Began:
    """Now, on a CPU; on a GPU when all is done that it has been given so far."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True, blocking=True)  # threads that wait take no core
    event.record(torch.cuda.current_stream(device))
    return event


def between(began: Began, ended: Began) -> float:
    """Seconds from one moment to a later one of the same device; a GPU's have to have come."""
    if isinstance(began, float) and isinstance(ended, float):
        return ended - began
    assert isinstance(began, torch.cuda.Event), "moments of two devices"
    assert isinstance(ended, torch.cuda.Event), "moments of two devices"
    return float(began.elapsed_time(ended)) / 1e3


class Operation(Protocol):
    """What encode, decode and roundtrip do with an item."""

    def look_up(self, item: Item, hold: Hold) -> Event | Picture | None:
        """An item's last event where it is done already; its picture, read; None where it is a clip. In any thread."""

    def compute(self, model: Model, values: Sequence[Tensor]) -> list[Tensor]:
        """Results [N, ...] for the values of N pictures of one key. In the caller's thread."""

    def expect(self, model: Model, values: Sequence[Tensor]) -> None:
        """Plans for what ``compute`` will be given next. In the caller's thread, while the device works."""

    def clip(self, item: Item) -> ClipRun:
        """Does a clip."""
