"""Rows of several buffers arrive where they belong, those of several frames in one message to each rank."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from unittest import mock

import pytest
import torch
from thread_ranks import ThreadExchange, together
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis, crop
from tvae.pipeline.engine.run import swap_rows as swapped
from tvae.pipeline.engine.run.swap_rows import PartOfRows, swap_rows

RANKS = 3
SHAPES = [((1, 4, 1, 0, 3), 3, 1), ((1, 3, 2, 0, 5), 3, 1), ((2, 8, 0, 3), 2, 1), ((1, 2, 0, 4), 2, 1), ((0, 5), 0, 2)]
"""Shapes without their rows, the dimension of these, and how often they come in it (frames that are merged)."""


def bands(draw: random.Random, rows: int) -> list[tuple[int, int]]:
    cuts = [0, *sorted(draw.sample(range(1, rows), RANKS - 1)), rows]
    return [*itertools.pairwise(cuts)]


def drawn(seed: int) -> list[tuple[Tensor, Axis, list[tuple[int, int]], list[tuple[int, int]]]]:
    """Whole values, and the rows of them that each rank owns and is to hold."""
    draw, found = random.Random(seed), []
    for _ in range(draw.randint(1, 7)):
        (shape, dim, outer), rows = draw.choice(SHAPES), draw.randint(5, 12)
        whole = [*shape]
        whole[dim] = outer * rows
        dtype = draw.choice([torch.float32, torch.bfloat16, torch.uint8, torch.float64])
        value = torch.randint(0, 100, whole, generator=torch.Generator().manual_seed(seed)).to(dtype)
        own = bands(draw, rows)
        more = draw.choice([1, 2, rows])
        held = [(max(0, lo - more), min(rows, hi + draw.choice([0, more]))) for lo, hi in own]
        found.append((value, Axis(dim, outer, rows, 1), own, held))
    return found


def as_rank(exchange: ThreadExchange, seed: int, channels_last: bool) -> list[Tensor]:
    buffers = []
    for value, axis, own, held in drawn(seed):
        (lo, hi), (first, last) = own[exchange.rank], held[exchange.rank]
        mine = crop(value, axis, first, last).clone()
        if channels_last and mine.ndim in (4, 5):
            mine = mine.movedim(1, -1).contiguous().movedim(-1, 1)
        for row in range(first, last):
            if not lo <= row < hi:
                split = mine.unflatten(axis.dim, (axis.outer, last - first, 1))
                split.select(axis.dim + 1, row - first).zero_()
        buffers.append(PartOfRows(mine, axis, first, own, held))
    swap_rows(exchange, buffers, channels_last=channels_last)
    return [one.value for one in buffers]


@pytest.mark.parametrize("most", [0, 100, 1 << 22])
@pytest.mark.parametrize("channels_last", [False, True])
def test_rows_arrive(most: int, channels_last: bool) -> None:
    for seed in range(25):
        with mock.patch.object(swapped, "_FEW_BYTES", most):
            results = together(RANKS, lambda exchange, seed=seed: as_rank(exchange, seed, channels_last))
        for rank, mine in enumerate(results):
            for (value, axis, _, held), got in zip(drawn(seed), mine, strict=True):
                assert torch.equal(got, crop(value, axis, *held[rank])), (seed, rank)


@pytest.mark.parametrize(("most", "messages"), [(1 << 22, 1), (200, 10)])
def test_a_few_rows_of_frames_of_all_buffers_travel_in_one_message(most: int, messages: int) -> None:
    """The caches of a clip's step, and frames that are merged with their rows: thirty messages took as long as a
    convolution. Many rows would be copied once more for that."""
    own, held = [(0, 4), (4, 8), (8, 12)], [(0, 5), (3, 9), (7, 12)]
    clips = [(torch.randn(1, 64, 2, 12, 3 + n), Axis(3, 1, 12, 1)) for n in range(9)]
    values = [*clips, (torch.randn(2 * 12, 64), Axis(0, 2, 12, 1))]
    sent: list[list[tuple[int, int, Tensor]]] = []

    def one(exchange: ThreadExchange) -> None:
        sent.append(exchange.sent)
        first, last = held[exchange.rank]
        parts = [PartOfRows(crop(value, axis, first, last).clone(), axis, first, own, held) for value, axis in values]
        swap_rows(exchange, parts, channels_last=True)

    with mock.patch.object(swapped, "_FEW_BYTES", most):
        together(RANKS, one)
    assert Counter((a, b) for a, b, _ in sent[0]) == dict.fromkeys([(0, 1), (1, 0), (1, 2), (2, 1)], messages)
