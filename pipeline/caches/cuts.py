"""Which frames of a video are kept, and which of those its pieces have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice

import numpy as np

from tvae.pipeline.caches.request import CacheRequest

__all__ = ["kept_count", "kept_frames", "pieces_of"]


def kept_frames(rate: float, wanted: float | None) -> Iterator[int | None]:
    """For each frame of a video in turn: its number among those that are kept, or None.

    Of a video of ``rate`` frames a second so many are kept that there are ``wanted``; of a slower one all.
    """
    if wanted is None or wanted >= rate:
        yield from count()
        return
    step, place, last = wanted / rate, 0.0, -1
    while True:
        number, place = int(place), place + step
        yield number if number != last else None
        last = number


def kept_count(frames: int, rate: float, wanted: float | None) -> int:
    """How many of so many frames are kept."""
    return sum(number is not None for number in islice(kept_frames(rate, wanted), frames))


@dataclass
class _Open:
    start: int
    length: int
    frames: list[np.ndarray] = field(default_factory=list)


def pieces_of(
    frames: Iterable[np.ndarray], request: CacheRequest, fitted: Callable[[int], int], total: int | None = None
) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Number of the first frame, and the frames, of each piece. What is left at the end is no piece.

    fitted: the length that a clip of so many frames is cut to where the request names none. total: how many frames
    there are; wanted where pieces are spread over them (``frame_sample``).
    """
    if request.frames is None:
        end = None if request.max_frames is None else request.start + request.max_frames
        whole = [*islice(frames, request.start, end)]
        if length := fitted(len(whole)):
            yield request.start, whole[:length]
        return
    begins, last = _begins(request, total)
    waiting: list[_Open] = []
    for number, frame in enumerate(frames):
        waiting += [_Open(number, length) for length in begins(number)]
        for one in waiting:
            one.frames.append(frame)
            if len(one.frames) == one.length:
                yield one.start, one.frames
        waiting = [one for one in waiting if len(one.frames) < one.length]
        if last is not None and number >= last and not waiting:
            return


def _begins(request: CacheRequest, total: int | None) -> tuple[Callable[[int], list[int]], int | None]:
    """Lengths of the pieces that begin with a frame, and the last frame that any begins with; None: there is none."""
    lengths, start = request.frames or (), request.start
    if request.frame_sample is not None:
        assert total is not None, "pieces are spread over a number of frames"
        spread = {length: _spread(start, total - length, request.frame_sample) for length in lengths}
        last = max((number for places in spread.values() for number in places), default=-1)
        return lambda number: [length for length, places in spread.items() if number in places], last
    if request.stride is None:
        return lambda number: [*lengths] if number == start else [], start
    strides = request.stride if len(request.stride) > 1 else request.stride * len(lengths)

    def begins(number: int) -> list[int]:
        past = number - start
        return [length for length, stride in zip(lengths, strides, strict=True) if past >= 0 and past % stride == 0]

    return begins, None


def _spread(first: int, last: int, many: int) -> set[int]:
    """So many numbers from the first to the last one, as far apart as the other, rounded down."""
    return set() if last < first else {first + int(one) for one in np.linspace(0, last - first, many, dtype=int)}
