"""Random calls that devices share: any family, size, length, batch and number of devices, one after the other."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from gloo_ranks import in_ranks
from sharing_vae import agrees, tiled
from slow_but import slow_but
from tiny_vaes import TINY, relative_l2, result, waves
from torch import Tensor
from torch import distributed as dist

from tvae.pipeline import TiledVAE

SIDES = ("decode", "encode")
pytestmark = pytest.mark.usefixtures("no_threads_left")


def inputs(name: str, draw: random.Random, seed: int) -> list[tuple[str, Tensor]]:
    """One to three, of few rows and columns, or of one."""
    tiny, found = TINY[name], []
    for _ in range(draw.randint(1, 3)):
        side = draw.choice(SIDES)
        like = tiny.input(side, draw.randint(1, 13), draw.randint(1, 9))
        batch = like.shape[0] if tiny.batch > 1 else draw.choice([1, 1, 2])
        found.append((side, waves((batch, *like.shape[1:]), seed)))
    return found


def taken(model: Any, side: str, x: Tensor, **extra: Any) -> bool:
    """Does the model itself take this? Some fail for one column, or for several clips at once."""
    try:
        with torch.no_grad():
            getattr(model, side)(x, **extra)
    except RuntimeError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("seed", slow_but(range(4), range(80)))
def test_calls_in_turn(seed: int) -> None:
    draw = random.Random(f"devices/{seed}")
    name, devices, strip = draw.choice([*TINY]), draw.choice([2, 2, 3, 4]), draw.choice([None, 1, 2, 3])
    model = TINY[name].build(seed)
    vae = tiled(model, devices, strip=strip)
    for side, x in inputs(name, draw, seed):
        if not taken(model, side, x, **TINY[name].extra(side)):
            continue
        agrees(vae, model, side, x, **TINY[name].extra(side))


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["AutoencoderKLMagvit"], ["AutoencoderKLMagvit", "SeedVR2VAE"]))
@pytest.mark.parametrize("frames", slow_but([5], [5, 9]))
def test_steps_that_cannot_be_shared_behind_one_that_is(name: str, frames: int) -> None:
    """A map of one column makes a constant of the size of a later step, which each device then computes whole."""
    model = TINY[name].build()
    agrees(tiled(model), model, "encode", narrow(name, frames))


def narrow(name: str, frames: int) -> Tensor:
    like = TINY[name].input("encode", 11, 1)
    return waves((1, like.shape[1], frames, *like.shape[3:]))


def own_rows(_rank: int, name: str) -> Tensor:
    vae = TiledVAE(TINY[name].build(), group=dist.group.WORLD, gather=False)
    with torch.no_grad():
        return result(vae.encode(narrow(name, 9)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AutoencoderKLMagvit", "SeedVR2VAE"])
def test_each_rank_has_its_rows_of_steps_that_were_not_shared(name: str) -> None:
    model = TINY[name].build().double()
    with torch.no_grad():
        want = result(model.encode(narrow(name, 9).double()))  # type: ignore[operator]
    parts = in_ranks(2, own_rows, name)
    assert [part.shape[-2] for part in parts] == [6, 5]
    assert relative_l2(torch.cat(parts, -2), want) <= 1e-5
