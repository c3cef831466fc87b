"""Clips one after the other, by one wrapper: each gets the plan that a new wrapper would make."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_vaes import TINY, relative_l2, waves
from torch import Tensor

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.errors import PlanError
from tvae.pipeline.memory import limits as budget
from tvae.pipeline.session import runner

pytestmark = pytest.mark.slow
WAN = TINY["AutoencoderKLWan"]
MIB, GIB = 1 << 20, 1 << 30
SIZE = (8, 16)
SHORT, LONG = 2, 12


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """In a process that has 300 MiB and grows by nothing."""
    monkeypatch.setattr(budget, "_resident", lambda: 300 * MIB)
    monkeypatch.setattr(budget, "_CPU_SPARE", 0)
    return WAN.build().requires_grad_(False)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that the machine has free, to be changed."""
    found = [4 * GIB]
    monkeypatch.setattr(budget, "available_bytes", lambda: found[0])
    return found


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


@pytest.mark.usefixtures("free")
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


def test_less_memory_than_before(model: Any, free: list[int]) -> None:
    """Caches that found room on the device leave it, also in the middle of a clip."""
    z = waves((1, 4, 3, 12, 40))
    tiled, asked = TiledVAE(model), TiledVAE(model)
    want = tiled.decode(z).sample
    before: Any = asked.plan(tuple(z.shape), "decode")
    stream = asked._session(z.device, z.dtype).stream("decode")
    assert stream is not None
    frames = [stream.step(z[:, :, :1])]
    free[0] = 20 * MIB
    plan: Any = asked.plan(tuple(z.shape), "decode")
    assert (before.caches_at, plan.caches_at) == ("device", "disk")
    assert relative_l2(tiled.decode(z).sample, want) <= 2e-6
    frames += [stream.step(z[:, :, n : n + 1]) for n in (1, 2)]
    assert relative_l2(torch.cat(frames, 2), want) <= 2e-6
