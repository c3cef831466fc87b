"""``bitwise`` on GPUs: one and two cards, three budgets and recorded runs give the same bits. Prints what it costs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tiny_vaes import TinyVAE, result
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.session.runner import RECORDED_AT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

SDXL = TinyVAE(
    "AutoencoderKL",
    {
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "block_out_channels": (128, 256, 512, 512),
        "layers_per_block": 2,
        "norm_num_groups": 32,
    },
    (4, None),
    8,
)
WAN = TinyVAE("AutoencoderKLWan", {"base_dim": 96, "z_dim": 16}, (16, 3), 8, (3, 9))
FAMILIES = {"sdxl": SDXL, "wan": WAN}
SIZES = [(32, 32), (36, 20), (40, 64), (64, 64), (72, 40), (90, 60), (96, 96), (128, 72), (131, 33), (160, 90)]
"""Height and width of latents."""
MIB = 1 << 20


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Iterator[tuple[str, nn.Module]]:
    yield request.param, FAMILIES[request.param].build().cuda().to(torch.bfloat16)
    torch.cuda.empty_cache()


def given(name: str, side: str, height: int, width: int) -> Tensor:
    return FAMILIES[name].input(side, height, width).cuda().to(torch.bfloat16)


def computed(model: nn.Module, side: str, x: Tensor, **how: Any) -> Tensor:
    return result(getattr(TiledVAE(model, bitwise=True, **how), side)(x)).cpu()


def budgets(model: nn.Module, side: Any, x: Tensor) -> list[int]:
    """The smallest that works, that and half of what a plan takes at ease, and enough for all of it."""
    plan = TiledVAE(model, bitwise=True).plan(tuple(x.shape), side)
    room = max(64 * MIB, plan.peak_bytes // 2)
    return [plan.least_budget + 64 * MIB + n * room for n in range(3)]


@pytest.mark.parametrize("side", ["decode", "encode"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_budgets_and_recorded_runs(family: tuple[str, nn.Module], size: tuple[int, int], side: str) -> None:
    name, model = family
    x = given(name, side, *size)
    vae = TiledVAE(model, bitwise=True)
    one, *again = (result(getattr(vae, side)(x)).cpu() for _ in range(RECORDED_AT + 1))
    assert all(torch.equal(one, other) for other in again), "the same plan, started and recorded"
    for vram in budgets(model, side, x):
        assert torch.equal(computed(model, side, x, vram=vram), one), f"in {vram >> 20} MiB"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("side", ["decode", "encode"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_two_cards(family: tuple[str, nn.Module], size: tuple[int, int], side: str) -> None:
    name, model = family
    x = given(name, side, *size)
    one = computed(model, side, x)
    assert torch.equal(computed(model, side, x, devices=[0, 1]), one)
    assert torch.equal(computed(model, side, x, devices=[0, 1], vram=budgets(model, side, x)[1]), one)


@pytest.mark.parametrize("side", ["decode", "encode"])
def test_another_order_of_calls(family: tuple[str, nn.Module], side: str) -> None:
    """Other sizes, and the same without ``bitwise``, before it: libraries remember what they chose."""
    name, model = family
    x = given(name, side, 48, 48)
    one = computed(model, side, x)
    with torch.no_grad():
        getattr(TiledVAE(model), side)(x)
    held = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    computed(model, side, given(name, side, 24, 56))
    assert torch.equal(computed(model, side, x), one)
    del held


def _milliseconds(vae: TiledVAE, side: str, x: Tensor) -> float:
    times = []
    for n in range(10):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        getattr(vae, side)(x)
        end.record()
        torch.cuda.synchronize()
        times += [start.elapsed_time(end)] if n >= 5 else []
    return statistics.median(times)


@pytest.mark.parametrize("side", ["decode", "encode"])
@pytest.mark.parametrize("latents", [64, 128, 256])
def test_what_it_costs(family: tuple[str, nn.Module], latents: int, side: str) -> None:
    """No limit: a table to read (``-s``)."""
    name, model = family
    x = given(name, side, latents, latents)
    plain, bitwise = (_milliseconds(TiledVAE(model, bitwise=same), side, x) for same in (False, True))
    print(
        f"\n{name} {side} {8 * latents}x{8 * latents}: {plain:.1f} ms, bitwise {bitwise:.1f} ms, {bitwise / plain:.2f}"
    )
