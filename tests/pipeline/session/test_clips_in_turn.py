"""Clips of several lengths, one after the other, in one budget: each gets the plan that a new wrapper would make."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_vaes import TINY, waves
from torch import Tensor

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.errors import PlanError
from tvae.pipeline.memory import limits as budget
from tvae.pipeline.session import runner

pytestmark = pytest.mark.long
WAN = TINY["AutoencoderKLWan"]
MIB, GIB = 1 << 20, 1 << 30
SIZE = (8, 16)
SHORT, LONG = 2, 12


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """On a machine of 4 GiB whose process has 300 MiB and grows by nothing."""
    monkeypatch.setattr(budget, "_resident", lambda: 300 * MIB)
    monkeypatch.setattr(budget, "_CPU_SPARE", 0)
    monkeypatch.setattr(budget, "available_bytes", lambda: 4 * GIB)
    return WAN.build().requires_grad_(False)


def latents(frames: int) -> Tensor:
    return waves((1, 4, frames, *SIZE))


def least(model: Any, frames: int) -> int:
    with pytest.raises(PlanError) as refused:
        TiledVAE(model, vram="1MiB").plan(tuple(latents(frames).shape), "decode")
    assert refused.value.enough is not None
    return refused.value.enough


def planned(tiled: TiledVAE, frames: int) -> tuple[int, str]:
    plan: Any = tiled.plan(tuple(latents(frames).shape), "decode")
    return plan.peak_bytes, plan.caches_at


def test_a_long_clip_after_a_short_one(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pixels of a long one leave less to its steps. Planned, and run."""
    size, lengths = least(model, LONG), (SHORT, LONG, SHORT)
    want = {frames: planned(TiledVAE(model, vram=size), frames) for frames in (SHORT, LONG)}
    assert want[LONG][0] <= int(0.92 * size) - 300 * MIB - budget._CPU_FIRST
    tiled = TiledVAE(model, vram=size)
    assert [planned(tiled, frames) for frames in lengths] == [want[frames] for frames in lengths]

    ran: list[Any] = []
    monkeypatch.setattr(runner, "execute", lambda plan, *a, **k: ran.append(plan) or execute(plan, *a, **k))

    def run(tiled: TiledVAE, frames: int) -> list[Any]:
        ran.clear()
        tiled.decode(latents(frames))
        return [(plan.strip_rows, sorted(plan.places.values())) for plan in ran]

    fresh = run(TiledVAE(model, vram=size), LONG)
    tiled = TiledVAE(model, vram=size)
    run(tiled, SHORT)
    assert run(tiled, LONG) == fresh
