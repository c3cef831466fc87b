"""Strips are as high as their own values allow, not as the largest value of the whole run does."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from gloo_ranks import in_ranks
from slow_but import slow_but
from tiny_vaes import TINY, relative_l2, result
from torch import distributed as dist

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.plan import raised
from tvae.pipeline.models.reference import call_reference, reference_mode
from tvae.pipeline.session import choose_plan

FAMILY = "AutoencoderKLHunyuanVideo"
HIGH, WIDE = 24, 4
MOST = 5 * 8 * 8 * WIDE * 8 * 8
"""Elements of a value: two latent rows of five frames with eight channels, at the size of the pixels."""


@pytest.fixture(autouse=True)
def low_strips() -> Iterator[None]:
    with few_elements():
        yield


@contextmanager
def few_elements() -> Iterator[None]:
    """Values as on a GPU at large sizes: no strip is high because all of its values fit a cache."""
    plain = dataclasses.replace(choose_plan.CPU, cache=0)
    with mock.patch.object(raised, "_MOST_ELEMENTS", MOST), mock.patch.object(choose_plan, "CPU", plain):
        yield


def outputs(side: str, **how: object) -> tuple[torch.Tensor, list[int], int]:
    """What is computed, the heights of strips, and the bytes that are planned."""
    model = TINY[FAMILY].build()
    vae = TiledVAE(model, **how)  # type: ignore[arg-type]
    x = TINY[FAMILY].input(side, HIGH, WIDE)
    found = result(getattr(vae, side)(x))
    plan = vae.plan(tuple(x.shape), side)  # type: ignore[arg-type]
    return found, [segment.strip_rows for segment in plan.segments], plan.peak_bytes  # type: ignore[union-attr]


def exact(side: str) -> torch.Tensor:
    model = copy.deepcopy(TINY[FAMILY].build()).double()
    with torch.no_grad(), reference_mode(model):
        return result(call_reference(model, side, TINY[FAMILY].input(side, HIGH, WIDE).double()))


@pytest.mark.slow
@pytest.mark.parametrize("side", slow_but(["decode"], ["decode", "encode"]))
def test_low_strips_for_the_largest_values_alone(side: str) -> None:
    want = exact(side)
    found, heights, peak = outputs(side)
    assert relative_l2(found, want) <= 1e-5
    assert min(heights) < max(heights)
    with mock.patch.object(choose_plan, "too_high", return_value=[]):
        low, flat, most = outputs(side)
    assert set(flat) == {min(heights)}
    assert peak <= most
    assert relative_l2(low, want) <= 1e-5


@pytest.mark.long
@pytest.mark.parametrize("how", [{"strip": 2}, {"strip": 5}], ids=str)
def test_one_height_where_one_is_wanted(how: dict[str, object]) -> None:
    found, heights, _ = outputs("decode", **how)
    assert len(set(heights)) == 1
    assert relative_l2(found, exact("decode")) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("part", [2, 4, 8])
@pytest.mark.parametrize("side", slow_but(["decode"], ["decode", "encode"]))
def test_a_budget_holds(side: str, part: int) -> None:
    tiny = TINY[FAMILY]
    free = TiledVAE(tiny.build()).plan(tuple(tiny.input(side, HIGH, WIDE).shape), side)  # type: ignore[arg-type]
    least = free.least_budget
    most = least + free.peak_bytes
    budget = least + (most - least) // part
    found, heights, peak = outputs(side, vram=budget)
    assert relative_l2(found, exact(side)) <= 1e-5
    assert peak <= budget
    assert max(heights) > 1


@pytest.mark.slow
@pytest.mark.parametrize("family", TINY)
def test_every_family_with_any_limit(family: str) -> None:
    """On the largest value, and on memory."""
    tiny, draw = TINY[family], random.Random(family)
    model = tiny.build()
    wide = copy.deepcopy(model).double()
    for side in ("decode", "encode"):
        x, extra = tiny.input(side, 13, 5), tiny.extra(side)
        with torch.no_grad(), reference_mode(wide):
            want = result(call_reference(wide, side, x.double(), **extra))
        for _ in range(2):
            with mock.patch.object(raised, "_MOST_ELEMENTS", int(want.numel() * draw.uniform(0.1, 9.0))):
                plan: Any = TiledVAE(model).plan(tuple(x.shape), side, **extra)  # type: ignore[arg-type]
                budget = int(plan.least_budget + draw.random() * plan.peak_bytes) if draw.random() < 0.5 else None
                found = result(getattr(TiledVAE(model, vram=budget), side)(x, **extra))
            assert relative_l2(found, want) <= 1e-5, (side, budget)


def on_a_rank(_rank: int, sides: Sequence[str]) -> dict[str, float]:
    found = {}
    for side in sides:
        with few_elements():
            got, heights, _ = outputs(side, group=dist.group.WORLD)
        found[side] = relative_l2(got, exact(side)) if min(heights) < max(heights) else 1.0
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ranks", slow_but([2], [2, 3]))
def test_ranks_share_such_a_plan(ranks: int) -> None:
    for found in in_ranks(ranks, on_a_rank, ("decode", "encode")):
        assert max(found.values()) <= 1e-5, found
