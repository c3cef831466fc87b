"""``bitwise``: a result has the same bits in every budget and on any number of devices.

The oracle is equality of bytes; what the numbers have to be is the model's own result in float64, as everywhere.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gloo_ranks import in_ranks
from slow_but import slow_but
from tiny_vaes import TINY, relative_l2, result
from torch import Tensor, nn
from torch import distributed as dist

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.plan.report import Plan
from tvae.pipeline.errors import PlanError, UsageError
from tvae.pipeline.session import choose_plan

SIDES = ("decode", "encode")
HEIGHT, WIDTH = 40, 8
"""Of latents: five strips."""


@pytest.fixture(autouse=True)
def _as_many_threads_as_processes_of_a_group_have() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def computed(vae: TiledVAE, side: str, x: Tensor) -> Tensor:
    return result(getattr(vae, side)(x))


def reference(model: nn.Module, side: str, x: Tensor) -> Tensor:
    with torch.no_grad():
        return result(getattr(model.double(), side)(x.double()))


def in_budget(monkeypatch: pytest.MonkeyPatch, room: int | None) -> None:
    """Bytes for buffers and strips, as if a budget had left so many."""
    monkeypatch.setattr(choose_plan, "activation_budget", lambda *_: room)


def in_budgets(vae: TiledVAE, side: Any, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Plan, Tensor]]:
    """In all the room there is, in half of what may be saved, and in the least that is enough."""
    in_budget(monkeypatch, None)
    at_ease = vae.plan(tuple(x.shape), side)
    most, least = at_ease.peak_bytes, at_ease.least_bytes  # type: ignore[union-attr]
    for room in (None, (most + least) // 2, least):
        in_budget(monkeypatch, room)
        plan = vae.plan(tuple(x.shape), side)
        assert isinstance(plan, Plan)
        yield plan, computed(vae, side, x)


@pytest.mark.long
@pytest.mark.parametrize("side", slow_but(["decode"], SIDES))
def test_budgets(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers go to the disk, and bits stay. Without it they do not, or this would show nothing."""
    tiny = TINY["AutoencoderKL"]
    model, x = tiny.build(), tiny.input(side, HEIGHT, WIDTH)
    exact = reference(tiny.build(), side, x)
    for bitwise in (True, False):
        found = [y for _, y in in_budgets(TiledVAE(model, bitwise=bitwise), side, x, monkeypatch)]
        assert all(torch.equal(found[0], other) for other in found) == bitwise
        assert all(relative_l2(y, exact) < 1e-5 for y in found)


@pytest.mark.long
def test_budgets_differ_in_places_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = TINY["AutoencoderKL"]
    vae, x = TiledVAE(tiny.build(), bitwise=True), tiny.input("decode", HEIGHT, WIDTH)
    most, some, least = (plan for plan, _ in in_budgets(vae, "decode", x, monkeypatch))
    assert most.peak_bytes > some.peak_bytes > least.peak_bytes
    assert most.disk_bytes == 0 < some.disk_bytes < least.disk_bytes
    for plan in (some, least):
        for one, other in zip(most.segments, plan.segments, strict=True):
            assert (one.modules, one.strips, one.halo, one.recompute) == (
                other.modules,
                other.strips,
                other.halo,
                other.recompute,
            )
    in_budget(monkeypatch, least.least_bytes - 1)
    with pytest.raises(PlanError, match="is too small; the smallest that works is"):
        vae.decode(x)


@pytest.mark.long
@pytest.mark.parametrize("family", ["AutoencoderKL", "AutoencoderKLWan"])
def test_devices_of_one_process(family: str) -> None:
    """1, 2 and 3 of them. Without it not, where statistics of all rows are joined; whether a convolution's sums differ
    goes by the processor. The last band is not a multiple of the strips."""
    tiny = TINY[family]
    model, x = tiny.build(), tiny.input("decode", 28, 4)
    for bitwise in (True, False) if family == "AutoencoderKL" else (True,):
        one = computed(TiledVAE(model, bitwise=bitwise), "decode", x)
        for devices in (2, 3):
            vae = TiledVAE(model, bitwise=bitwise, devices=["cpu"] * devices)
            assert torch.equal(result(vae.decode(x)), one) == bitwise
            if bitwise and x.ndim == 4:
                bands = vae.plan(tuple(x.shape), "decode").bands  # type: ignore[union-attr]
                assert bands == {2: ((0, 16), (16, 28)), 3: ((0, 8), (8, 16), (16, 28))}[devices]


def test_devices_in_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = TINY["AutoencoderKL"]
    model, x = tiny.build(), tiny.input("decode", HEIGHT, WIDTH)
    one = computed(TiledVAE(model, bitwise=True), "decode", x)
    in_budget(monkeypatch, None)
    at_ease = TiledVAE(model, bitwise=True, devices=["cpu", "cpu"]).plan(tuple(x.shape), "decode")
    assert isinstance(at_ease, Plan)
    in_budget(monkeypatch, (at_ease.peak_bytes + at_ease.least_bytes) // 2)
    shared = TiledVAE(model, bitwise=True, devices=["cpu", "cpu"])  # which keeps to the plans that it finds
    assert torch.equal(computed(shared, "decode", x), one)
    assert at_ease.disk_bytes == 0 < shared.plan(tuple(x.shape), "decode").disk_bytes  # type: ignore[union-attr]


def in_group(_rank: int, family: str, side: str, heights: tuple[int, ...]) -> dict[str, Tensor]:
    vae = TiledVAE(TINY[family].build(), bitwise=True, group=dist.group.WORLD)
    return {str(height): result(getattr(vae, side)(TINY[family].input(side, height, 5))) for height in heights}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("family", ["AutoencoderKL", "AutoencoderKLWan"])
def test_ten_sizes_in_processes(family: str, side: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And in three budgets of one process."""
    heights = (7, 8, 15, 16, 17, 24, 33, 40, 47, 64)
    tiny = TINY[family]
    vae = TiledVAE(tiny.build(), bitwise=True)
    one = {str(height): computed(vae, side, tiny.input(side, height, 5)) for height in heights}
    for height in heights[::3] if family == "AutoencoderKL" else ():
        others = in_budgets(TiledVAE(tiny.build(), bitwise=True), side, tiny.input(side, height, 5), monkeypatch)
        assert all(torch.equal(y, one[str(height)]) for _, y in others)
    for found in in_ranks(ranks, in_group, family, side, heights, seconds=600):
        assert found.keys() == one.keys()
        assert all(torch.equal(found[height], one[height]) for height in one)


def with_threads(rank: int) -> list[str]:
    """What is said where one of the processes has more threads, which may add in another order."""
    torch.set_num_threads(1 + rank)
    said = []
    for bitwise in (True, False):
        vae = TiledVAE(TINY["AutoencoderKL"].build(), bitwise=bitwise, group=dist.group.WORLD)
        try:
            vae.decode(TINY["AutoencoderKL"].input("decode", HEIGHT, WIDTH))
        except UsageError as error:
            said.append(str(error))
    return said


@pytest.mark.long
def test_processes_with_other_numbers_of_threads_are_refused() -> None:
    for (said,) in in_ranks(2, with_threads):
        assert "another number of threads (OMP_NUM_THREADS) than rank 0" in said


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("family", TINY)
def test_every_family(family: str, side: str) -> None:
    tiny = TINY[family]
    model, x, extra = tiny.build(), tiny.input(side, 20, 4), tiny.extra(side)
    one, *others = (
        result(getattr(TiledVAE(model, bitwise=True, devices=["cpu"] * n), side)(x, **extra)) for n in (1, 2, 3)
    )
    assert all(torch.equal(one, other) for other in others)


@pytest.mark.long
@pytest.mark.parametrize(("side", "share"), slow_but([("decode", 0.75)], [("decode", 0.75), ("encode", 0.9)]))
def test_steps_of_a_clip_whose_caches_leave_the_device(
    side: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = TINY["AutoencoderKLWan"]
    x = tiny.input(side, 20, 4)
    x = torch.cat([x, x[:, :, 1:], x[:, :, 1:]], 2)
    vae = TiledVAE(tiny.build(), bitwise=True)
    in_budget(monkeypatch, None)
    one = computed(vae, side, x)
    tight = TiledVAE(tiny.build(), bitwise=True)
    steps = vae.plan(tuple(x.shape), side).steps  # type: ignore[union-attr,arg-type]
    in_budget(monkeypatch, int(share * max(step.plan.peak_bytes for step in steps)))
    assert tight.plan(tuple(x.shape), side).caches_at == "disk"  # type: ignore[union-attr,arg-type]
    assert torch.equal(computed(tight, side, x), one)


class Summed(nn.Module):
    """Adds up along each row, and adds elements that meet."""

    def __init__(self, *, meeting: bool) -> None:
        super().__init__()
        self.last, self.meeting = nn.Conv2d(4, 4, 1), meeting

    def encode(self, x: Tensor) -> Tensor:
        return self.decode(x)

    def decode(self, z: Tensor) -> Tensor:
        y: Tensor = self.last(z)
        places = (torch.zeros_like(y) if self.meeting else torch.zeros_like(y) + 1).long()
        return y.scatter_add(-1, places, y) if self.meeting else y.cumsum(-1)


def test_operations_that_add_in_any_order_are_refused() -> None:
    """In one line that names the operation and the module; where its order is known there is no reason to."""
    z = torch.randn(1, 4, 24, 6)
    with pytest.raises(UsageError) as refused:
        TiledVAE(Summed(meeting=True), bitwise=True).decode(z)
    assert str(refused.value).startswith("operation 'aten.scatter_add.default' in the model itself may give other bits")
    assert "\n" not in str(refused.value)
    assert TiledVAE(Summed(meeting=True)).decode(z).shape == z.shape
    assert TiledVAE(Summed(meeting=False), bitwise=True).decode(z).shape == z.shape


def test_a_copy_is_as_it_was() -> None:
    vae = pickle.loads(pickle.dumps(TiledVAE(TINY["AutoencoderTiny"].build(), bitwise=True)))
    shape = TINY["AutoencoderTiny"].input("decode", 24, 4).shape
    assert vae.plan(tuple(shape), "decode").strip_rows == 8
    assert TiledVAE(vae.vae).plan(tuple(shape), "decode").strip_rows == 24
