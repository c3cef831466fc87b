"""Autoencoders in the ways of research repositories, at several sizes, strips, types and budgets, against float64."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import more_strangers
import pytest
import torch
from strangers import STRANGERS
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import PlanError
from tvae.pipeline.memory import limits

SIDES = ("encode", "decode")
MIB = 1 << 20
assert more_strangers.Swin.__name__ in STRANGERS


def built(name: str) -> tuple[nn.Module, nn.Module]:
    """A model, and the same in float64."""
    torch.manual_seed(0)
    model = STRANGERS[name]().eval()
    return model, copy.deepcopy(model).double()


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
        return
    for each in value:
        yield from tensors(each)


def given(model: Any, side: str, n: int, height: int, width: int) -> Tensor:
    """What a side takes, of so many latent rows and columns."""
    torch.manual_seed(height)
    frames = (5,) if getattr(model, "clip", False) else ()
    x = torch.randn(n, 3, *frames, 4 * height, 4 * width)
    return x if side == "encode" else next(tensors(model.encode(x)))


def check(got: Any, own: Any, want: Any, bound: float) -> None:
    """got: of strips; own: the model's in that type; want: in float64."""
    for one, its, wide in zip(*map(tensors, (got, own, want)), strict=True):
        assert (one.shape, one.dtype) == (its.shape, its.dtype)
        off, its_off = (float((t.double() - wide).norm() / wide.norm()) for t in (one, its))
        assert off <= max(bound, 1.02 * its_off)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", STRANGERS)
def test_strips_give_the_model_s_own_numbers(name: str, side: str) -> None:
    model, wide = built(name)
    for strip, sizes in ((1, [(1, 16, 12), (2, 13, 18)]), (3, [(3, 24, 7), (1, 18, 18)])):
        tiled = TiledVAE(model, "cpu", strip=strip)
        for n, height, width in sizes:
            x = given(model, side, n, height, width)
            check(getattr(tiled, side)(x), getattr(model, side)(x), getattr(wide, side)(x.double()), 1e-5)
            plan = tiled.plan(tuple(x.shape), side)
            assert plan.strips >= height // strip
            assert plan.whole == ()


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("name", STRANGERS)
def test_lower_types_err_no_more_than_the_model(name: str) -> None:
    model, wide = built(name)
    model = model.bfloat16()
    wide.load_state_dict(model.state_dict())
    for side in SIDES:
        x = given(model.float(), side, 2, 14, 11).bfloat16()
        model.bfloat16()
        got = getattr(TiledVAE(model, "cpu", strip=3), side)(x)
        check(got, getattr(model, side)(x), getattr(wide, side)(x.double()), 0.0)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("name", STRANGERS)
def test_the_smallest_budget_is_enough(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_resident", lambda: 300 * MIB)
    monkeypatch.setattr(limits, "_CPU_SPARE", 0)
    monkeypatch.setattr(limits, "available_bytes", lambda: 4096 * MIB)
    model, wide = built(name)
    for side in SIDES:
        x = given(model, side, 1, 40, 24)
        with pytest.raises(PlanError) as caught:
            TiledVAE(model, "cpu", vram="1MiB").plan(tuple(x.shape), side)
        assert caught.value.enough is not None
        for room in (caught.value.enough, caught.value.enough + 2 * MIB):
            got = getattr(TiledVAE(model, "cpu", vram=room), side)(x)
            check(got, getattr(model, side)(x), getattr(wide, side)(x.double()), 1e-5)
