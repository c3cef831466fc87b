"""Clips on demand: the engine asks for frames. Bytes of a few are held, floats exist for the frames of a strip only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from tvae.pipeline.engine.run.storage import Done
from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.busy import CLIP
from tvae.pipeline.jobs.compute import enough_memory
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.lengths import LengthFit
from tvae.pipeline.jobs.reading import Chunk, Source
from tvae.pipeline.media import frames_to_tensor, tensor_to_frames

if TYPE_CHECKING:
    from tvae.pipeline.session.model import Model

__all__ = ["FrameRows", "LatentRows", "LatentSink", "PictureSink", "encode_on_demand"]

_SEEN_AGAIN = 4
"""Fetches whose rows stay: the engine asks ahead by one, and for a strip's rows again where memory ran out."""

T = TypeVar("T")


class _Window(Generic[T]):
    """Items that come one after the other, the last few of which can be had again."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items, self._held, self._first = iter(items), deque[T](), 0
        self._starts: deque[int] = deque(maxlen=_SEEN_AGAIN)

    def get(self, lo: int, hi: int) -> list[T]:
        """Items [lo, hi). InputError where there are fewer."""
        self._held.extend(islice(self._items, max(0, hi - self._first - len(self._held))))
        if self._first + len(self._held) < hi:
            raise InputError(f"it ends after {self._first + len(self._held)} frames, of {hi} and more")
        self._starts.append(lo)
        while self._first < min(self._starts):
            self._held.popleft()
            self._first += 1
        return list(islice(self._held, lo - self._first, hi - self._first))


class FrameRows:
    """uint8 [H, W, 3] pictures as the [1, 3, T, H, W] clip in [-1, 1] that a model takes."""

    def __init__(self, pictures: Iterable[np.ndarray], frames: int, like: np.ndarray, model: Model) -> None:
        """like: one of the pictures."""
        self._window = _Window(pictures)
        self.shape = (1, like.shape[2], frames, *like.shape[:2])
        self.device, self.dtype = model.device, model.dtype

    def fetch(self, lo: int, hi: int) -> Done:
        """Frames [lo, hi)."""
        pictures = frames_to_tensor(self._window.get(lo, hi), self.device, self.dtype)
        return Done(pictures.transpose(0, 1).unsqueeze(0))


class LatentRows:
    """Raw latent frames [C, h, w] as the [1, C, t, h, w] clip that a decoder takes."""

    def __init__(self, latents: Iterable[Tensor], frames: int, size: tuple[int, int], model: Model) -> None:
        self._window = _Window(latents)
        self.shape = (1, model.info.latent_channels, frames, *size)
        self.device, self.dtype = model.device, model.dtype

    def fetch(self, lo: int, hi: int) -> Done:
        """Latent frames [lo, hi)."""
        return Done(torch.stack(self._window.get(lo, hi), 1).unsqueeze(0).to(self.device, self.dtype))


class LatentSink:
    """Takes moments [1, 2·C, t, h, w] by latent frames and hands them on, one at a time."""

    def __init__(self, take: Callable[[Tensor], None]) -> None:
        self._take = take

    def keep(self, lo: int, hi: int, rows: Tensor) -> Done:
        """Take latent frames [lo, hi)."""
        for moments in rows.split(1, 2):
            self._take(moments)
        return Done()


class PictureSink:
    """Takes pixels [1, 3, T, H, W] by frames and hands them on as uint8 [H, W, 3] pictures."""

    def __init__(self, take: Callable[[np.ndarray], None]) -> None:
        self._take = take

    def keep(self, lo: int, hi: int, rows: Tensor) -> Done:
        """Take frames [lo, hi). InputError for values that are not finite."""
        for picture in tensor_to_frames(rows[0].transpose(0, 1)):
            self._take(picture)
        return Done()


def encode_on_demand(
    source: Source,
    read: Iterator[Chunk],
    fit: LengthFit,
    model: Model,
    context: Context,
    take: Callable[[Tensor], None],
    seen: Callable[[Chunk], None] = lambda _chunk: None,
) -> None:
    """Encode a clip whose frames are fetched, from those that are read, as the model gets to them.

    take: is given the moments [1, 2·C, 1, h, w] of one latent frame after the other. seen: each frame on its way in.
    The model has to know how many there are: they are counted before. InputError where the count was another.
    """
    counted, busy = source.count(), context.busy
    fitted = fit.through(read)
    first = next(fitted)

    def pictures() -> Iterator[np.ndarray]:
        for chunk in chain([first], busy.without(CLIP, fitted)):
            seen(chunk)
            yield chunk.frames[0]

    with busy.at(CLIP), enough_memory(model):
        rows = FrameRows(pictures(), fit.fitted(counted), first.frames[0], model)
        model.run_frames("encode", rows, LatentSink(take))
    if next(fitted, None) is not None:  # what is dropped at the end is known then, too
        raise InputError(f"it holds more frames than the {counted} that were counted")
