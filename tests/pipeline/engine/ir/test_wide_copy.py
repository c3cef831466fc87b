"""Copies by elements of 16 bytes: the bits of PyTorch's own, and only where memory lies so."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from tvae.pipeline.engine.ir import layout
from tvae.pipeline.engine.ir.layout import copy_into

TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.uint8)


class Card(Tensor):
    """A tensor that says that it is on a card."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


def bits(x: Tensor) -> Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


def drawn(draw: random.Random, shape: list[int], dtype: torch.dtype) -> Tensor:
    """Any bits, in one of the layouts that buffers have: a part of something larger."""
    more = [n + draw.choice((0, 0, 1, 2)) if d != 1 else n + draw.choice((0, 0, 8)) for d, n in enumerate(shape)]
    order = [0, *range(2, len(shape)), 1] if draw.random() < 0.8 else [*range(len(shape))]
    whole = torch.empty_permuted(more, order, dtype=dtype)
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
    values = torch.randint(256, (whole.nbytes,), generator=generator, dtype=torch.uint8)
    whole.copy_(values.view(dtype).view(more))
    for dim, n in enumerate(shape):
        whole = whole.narrow(dim, draw.randint(0, more[dim] - n), n)
    return whole.as_subclass(Card)


@pytest.mark.parametrize("seed", range(60))
def test_the_same_bits(seed: int) -> None:
    draw = random.Random(seed)
    channels = draw.choice((1, 3, 4, 8, 12, 16, 96))
    shape = [draw.choice((1, 2)), channels, *(draw.randint(1, 4) for _ in range(draw.choice((1, 2, 3))))]
    dtype = draw.choice(TYPES)
    x, into = drawn(draw, shape, dtype), drawn(draw, shape, dtype)
    want, wide = bits(x.as_subclass(Tensor).clone()), layout._wide(x)
    assert copy_into(into, x) is into
    assert torch.equal(bits(into.as_subclass(Tensor)), want)
    if wide is not None:
        assert wide.numel() * 16 == x.numel() * x.element_size()


def test_rows_of_clips_are_wide() -> None:
    """Those of a buffer with room for the rows of others."""
    room = torch.empty_permuted((1, 96, 6, 12, 7), [0, 2, 3, 4, 1], dtype=torch.bfloat16)
    wide = layout._wide(room.narrow(3, 1, 10))
    assert wide is not None
    assert wide.shape == (1, 6, 10, 7, 12)


def test_wide_ones_are_what_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    x, into = (torch.zeros(1, 8, 2, 3, 4).as_subclass(Card) for _ in range(2))
    ours = torch.tensor([1.0]), torch.tensor([2.0])
    found = iter(ours)
    monkeypatch.setattr(layout, "_wide", lambda _: next(found))
    copy_into(into, x)
    assert float(ours[0]) == 2.0


def test_another_type_is_cast() -> None:
    x = torch.randn(1, 8, 2, 3, 4).contiguous(memory_format=torch.channels_last_3d).as_subclass(Card)
    into = torch.empty_like(x, dtype=torch.bfloat16)
    assert torch.equal(copy_into(into, x), x.bfloat16())
