"""Copies of several tensors at once are those of each alone."""

from __future__ import annotations

import random
from unittest import mock

import pytest
import torch
from torch import Tensor

from tvae.pipeline.engine.ir.layout import _pieces, copy_all_into


def drawn(draw: random.Random) -> tuple[Tensor, Tensor]:
    """Parts of two buffers in layouts of their own."""
    shape = [draw.randint(1, 4) for _ in range(draw.randint(1, 5))]
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.uint8])
    found = []
    for _ in range(2):
        order = draw.choice([[*range(len(shape))], draw.sample(range(len(shape)), len(shape))])
        whole = [size + draw.choice([0, 0, 2]) for size in shape]
        buffer = torch.randint(0, 99, [whole[d] for d in order]).to(dtype)
        value = buffer.permute([order.index(d) for d in range(len(shape))])
        for dim, size in enumerate(shape):
            value = value.narrow(dim, draw.randint(0, whole[dim] - size), size)
        found.append(value)
    return found[0], found[1]


def test_drawn_parts() -> None:
    draw = random.Random(0)
    for _ in range(150):
        pairs = [drawn(draw) for _ in range(draw.randint(0, 9))]
        wanted = [x.clone() for _, x in pairs]
        around = [
            (into._base, None if into._base is None else into._base.sum(dtype=torch.float64)) for into, _ in pairs
        ]
        before = [into.sum(dtype=torch.float64) for into, _ in pairs]
        copy_all_into(pairs)
        for (into, x), want, (base, total), gone in zip(pairs, wanted, around, before, strict=True):
            assert torch.equal(into, want)
            assert torch.equal(x, want)
            if base is not None and total is not None:  # nothing beside it is written to
                assert base.sum(dtype=torch.float64) == total - gone + into.sum(dtype=torch.float64)


@pytest.mark.parametrize("layout", [torch.channels_last_3d, torch.contiguous_format])
def test_rows_of_frames_are_one_kernels(layout: torch.memory_format) -> None:
    caches = [torch.randn(1, 8, 2, 10, 6).contiguous(memory_format=layout) for _ in range(7)]
    message = torch.zeros(7, 2, 2, 6, 8) if layout == torch.channels_last_3d else torch.zeros(7, 8, 2, 2, 6)
    parts = [part[None].movedim(-1, 1) if layout == torch.channels_last_3d else part[None] for part in message]
    lists = []
    copy = torch._foreach_copy_
    with mock.patch.object(torch, "_foreach_copy_", lambda *both: (lists.append(both), copy(*both))):
        copy_all_into([(part, cache[:, :, :, 3:5]) for part, cache in zip(parts, caches, strict=True)])
    (both,) = lists
    frames = 2 if layout == torch.channels_last_3d else 16
    assert [len(pieces) for pieces in both] == [7 * frames] * 2
    assert all(torch.equal(part, cache[:, :, :, 3:5]) for part, cache in zip(parts, caches, strict=True))


def test_what_lies_in_many_pieces_is_copied_alone() -> None:
    x = torch.randn(1, 32, 2, 10, 6)
    assert _pieces(torch.empty(1, 32, 2, 2, 6), x[:, :, :, 3:5]) is None
    assert _pieces(torch.empty(3, 0), torch.empty(3, 0)) is None
    assert _pieces(torch.empty(3), torch.empty(3).double()) is None


def test_few_are_copied_one_by_one() -> None:
    """Which takes two microseconds each on a GPU, where the kernel for many takes eight."""
    pairs = [(torch.zeros(3, 4), torch.randn(3, 4)) for _ in range(5)]
    with mock.patch.object(torch, "_foreach_copy_") as many:
        copy_all_into(pairs)
    many.assert_not_called()
    assert all(torch.equal(into, x) for into, x in pairs)
