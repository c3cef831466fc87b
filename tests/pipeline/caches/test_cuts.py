"""Which frames pieces of a video have: worked out on paper, by what musubi-tuner's dataset configuration says."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvae.pipeline.caches import CacheRequest
from tvae.pipeline.caches.spec import kept_count, kept_frames, pieces_of
from tvae.pipeline.errors import UsageError


def shown(length: int, read: list[int] | None = None) -> Iterator[np.ndarray]:
    """Frames that hold their own numbers. read: is told which were asked for."""
    for number in range(length):
        if read is not None:
            read.append(number)
        yield np.full(1, number)


def fitted(length: int) -> int:
    """Of a VAE that takes 4k + 1 frames."""
    return (length - 1) // 4 * 4 + 1 if length else 0


def cut(length: int, read: list[int] | None = None, **wanted: Any) -> list[tuple[int, int]]:
    """(start, frames) of each piece of a video, in order; each holds the frames that it says."""
    found = []
    for start, frames in pieces_of(shown(length, read), CacheRequest("musubi", **wanted), fitted, length):
        assert [int(one[0]) for one in frames] == [*range(start, start + len(frames))]
        found.append((start, len(frames)))
    return sorted(found)


@pytest.mark.parametrize(
    ("length", "wanted", "pieces"),
    [
        # frame_extraction head
        (26, {"frames": (17, 5)}, [(0, 5), (0, 17)]),
        (16, {"frames": (17, 5)}, [(0, 5)]),
        (4, {"frames": (17, 5)}, []),
        # chunk
        (18, {"frames": (5, 9), "stride": (5, 9)}, [(0, 5), (0, 9), (5, 5), (9, 9), (10, 5)]),
        (17, {"frames": (9, 5), "stride": (9, 5)}, [(0, 5), (0, 9), (5, 5), (10, 5)]),
        # slide
        (18, {"frames": (5, 9), "stride": (6,)}, [(0, 5), (0, 9), (6, 5), (6, 9), (12, 5)]),
        # uniform: of 26 frames, a piece of 5 begins with the 0th to 21st, one of 9 with the 0th to 17th
        (26, {"frames": (5, 9), "frame_sample": 3}, [(0, 5), (0, 9), (8, 9), (10, 5), (17, 9), (21, 5)]),
        (26, {"frames": (5,), "frame_sample": 4}, [(0, 5), (7, 5), (14, 5), (21, 5)]),
        (26, {"frames": (9,), "frame_sample": 5}, [(0, 9), (4, 9), (8, 9), (12, 9), (17, 9)]),
        (26, {"frames": (9,), "frame_sample": 1}, [(0, 9)]),
        (6, {"frames": (5,), "frame_sample": 3}, [(0, 5), (1, 5)]),  # 0, 0 and 1: one name is one file
        (5, {"frames": (5, 9), "frame_sample": 3}, [(0, 5)]),
        (4, {"frames": (5, 9), "frame_sample": 3}, []),
        (30, {"frames": (5,), "frame_sample": 3, "start": 4}, [(4, 5), (14, 5), (25, 5)]),
        # full
        (26, {}, [(0, 25)]),
        (26, {"max_frames": 11}, [(0, 9)]),
        (26, {"max_frames": 26}, [(0, 25)]),
        (7, {"max_frames": 129}, [(0, 5)]),
        (26, {"max_frames": 11, "start": 3}, [(3, 9)]),
        (3, {"max_frames": 11, "start": 3}, []),
    ],
)
def test_golden(length: int, wanted: dict[str, Any], pieces: list[tuple[int, int]]) -> None:
    assert cut(length, **wanted) == pieces


@pytest.mark.parametrize(
    ("wanted", "needed"),
    [
        ({"frames": (5, 9)}, 9),
        ({"frames": (9,), "start": 3}, 12),
        ({"max_frames": 11, "start": 3}, 14),
        ({"frames": (5,), "frame_sample": 1}, 5),
    ],
)
def test_nothing_is_read_after_the_last_piece(wanted: dict[str, Any], needed: int) -> None:
    read: list[int] = []
    cut(50, read, **wanted)
    assert read == [*range(needed)]


@given(
    length=st.integers(0, 40),
    frames=st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True),
    strides=st.none() | st.lists(st.integers(1, 12), min_size=3, max_size=3),
    start=st.integers(0, 9),
)
def test_pieces_are_slices(length: int, frames: list[int], strides: list[int] | None, start: int) -> None:
    steps = strides and strides[: len(frames)]
    wanted = {(n, one) for k, one in enumerate(frames) for n in range(start, length - one + 1, (steps or [99] * 3)[k])}
    asked = {"frames": (*frames,), "stride": steps and (*steps,), "start": start}
    assert cut(length, **asked) == sorted(wanted)


@given(length=st.integers(1, 60), piece=st.integers(1, 9), many=st.integers(2, 12))
def test_spread_pieces_are_as_far_apart_as_can_be(length: int, piece: int, many: int) -> None:
    found = [start for start, _ in cut(length, frames=(piece,), frame_sample=many)]
    room = length - piece
    if room < 0:
        assert found == []
        return
    assert (found[0], found[-1]) == (0, room)
    steps = {after - before for before, after in pairwise(found)}
    assert steps <= {room // (many - 1), room // (many - 1) + 1}
    assert len(found) == min(many, room + 1)


@given(rate=st.floats(1, 120), wanted=st.floats(1, 120))
def test_as_many_frames_are_kept_as_were_asked_for(rate: float, wanted: float) -> None:
    numbers = [*islice(kept_frames(rate, wanted), 600)]
    kept = [number for number in numbers if number is not None]
    assert kept == [*range(len(kept))]
    assert numbers[0] == 0
    assert abs(len(kept) - 600 * min(1.0, wanted / rate)) <= 1
    assert kept_count(600, rate, wanted) == len(kept)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"frames": (9, 0)}, "--frames 9,0 is too small"),
        ({"frames": ()}, "--frames"),
        ({"frames": (9, 9)}, "names a length twice"),
        ({"frames": (9,), "stride": (0,)}, "--stride 0 is too small"),
        ({"frames": (9, 17, 33), "stride": (4, 8)}, "--stride 4,8: name one, or one for each length of --frames 9,17"),
        ({"stride": (4,)}, "--stride cuts videos into pieces; say how long they are with --frames"),
        ({"frame_sample": 4}, "--frame-sample cuts videos into pieces; say how long they are with --frames"),
        ({"frames": (9,), "frame_sample": 0}, "--frame-sample 0 is too small"),
        ({"frames": (9,), "frame_sample": 2, "stride": (9,)}, "--stride and --frame-sample both"),
        ({"frames": (9,), "max_frames": 129}, "--max-frames is of videos in one piece"),
        ({"max_frames": 0}, "--max-frames 0 is too small"),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        CacheRequest("musubi", **fields)
