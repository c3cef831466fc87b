"""What is known from other sizes makes a plan quicker, and no other: against a plan that knows of none."""

from __future__ import annotations

import random
import threading
from functools import lru_cache
from typing import Any

import pytest
import torch
from tiny_vaes import TINY
from torch.testing import assert_close

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.plan.footprint import at_most
from tvae.pipeline.errors import PlanError
from tvae.pipeline.memory.limits import Limits, Overhead
from tvae.pipeline.models.calls import Call, Side
from tvae.pipeline.models.families import frames_axis_of, stepping_of
from tvae.pipeline.session import choose_plan, prepared
from tvae.pipeline.session.captures import Captures
from tvae.pipeline.session.prepared import Compiled
from tvae.pipeline.session.task import Task

CASES: list[Any] = [
    ("AutoencoderKL", "encode"),
    pytest.param("AutoencoderKL", "decode", marks=pytest.mark.slow),
    ("AutoencoderTiny", "decode"),
    pytest.param("AutoencoderKLWan", "encode", marks=pytest.mark.slow),
    pytest.param("AutoencoderKLLTXVideo", "decode", marks=pytest.mark.slow),
    pytest.param("AutoencoderKLHunyuanVideo", "decode", marks=pytest.mark.slow),
]
MIB = 1 << 20


@lru_cache
def model_of(name: str) -> Any:
    return TINY[name].build()


def compiled(name: str, side: Side, *, like: Compiled | None = None) -> Compiled:
    """Fresh, but for the captured graphs."""
    stepping = stepping_of(name, side)
    step, frames = (None, frames_axis_of(name, side)) if stepping is None else (stepping.step, None)
    made = Compiled(side, lambda: model_of(name), None, step=step, frames=frames)
    if like is not None:
        made.captures = like.captures
    return made


def told(one: Compiled, shape: tuple[int, ...], limits: Limits) -> Any:
    """Of a plan: its program; what it takes; of one strip every segment, too. Or the refusal."""
    x = torch.empty((), dtype=torch.float32).expand(shape)
    try:
        plan = one._prepare([x], limits, Call(), {})[1]
    except PlanError as error:
        return str(error)
    schedule, cost = plan.schedule, plan.cost
    assert (at_most(schedule) or cost.device) >= cost.device
    ops = [(op.id, op.name, op.inputs, op.axis, op.shape, op.dtype, op.bytes, op.work) for op in schedule.program.ops]
    takes = schedule.strip_rows, schedule.places, cost.device, cost.host, cost.disk, float(f"{plan.seconds:.9e}")
    # several strips may be cut in two ways that take the same
    segments = (schedule.segments, schedule.stored, schedule.defer, cost) if schedule.single else None
    return ops, takes, plan.at_ease, segments


@pytest.mark.long
@pytest.mark.parametrize(("name", "side"), CASES)
def test_a_plan_is_the_same_whatever_was_planned_before(name: str, side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, budget = random.Random(f"{name} {side}"), 0
    machine = chance.choice((choose_plan.CUDA, choose_plan.CPU))
    monkeypatch.setattr(choose_plan, "activation_budget", lambda *_: budget)
    monkeypatch.setattr(choose_plan, "overhead", lambda *_, **__: Overhead(100 * MIB))
    monkeypatch.setattr(choose_plan, "unused_bytes", lambda _: budget)
    monkeypatch.setattr(choose_plan, "_machine", lambda _: machine)
    monkeypatch.setattr(choose_plan, "_rates", lambda _: machine)
    known = compiled(name, side)
    tiny = TINY[name]
    frames = 1 if stepping_of(name, side) else (tiny.latent if side == "decode" else tiny.pixel)[1]
    channels = (tiny.latent if side == "decode" else tiny.pixel)[0]
    factor = 1 if side == "decode" else tiny.scale
    for _ in range(8):
        height, width = (factor * chance.randint(3, 40) for _ in range(2))
        shape = (1, channels, *([frames] if frames else []), height, width)
        strip, fixed = chance.choice([(256, False), (256, False), (16, False), (4, True)])
        vram = chance.choice([None, None, 1 << 40])
        limits = Limits(strip, fixed, vram)
        budget = chance.choice([1 << 40, 1 << 34, height * width * 2000, height * width * 300])
        expected = told(compiled(name, side, like=known), shape, limits)
        assert told(known, shape, limits) == expected


def test_what_is_expected_is_planned_in_another_thread_and_captures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("AutoencoderKL")
    tiled = TiledVAE(model, "cpu", strip=256)
    x = [torch.randn(1, 3, size, 24) for size in (16, 32, 40, 48)]
    session = tiled._session(x[0].device, torch.float32)
    session.expect(Task("encode"), tuple(x[1].shape))  # nothing is known yet
    tiled.encode(x[0])
    plans, made = session._sides[Task("encode")]._plans, []
    monkeypatch.setattr(Captures, "_capture", lambda *_: pytest.fail("a capture"))

    def expect() -> None:
        for one in x[1:]:
            session.expect(Task("encode"), tuple(one.shape))
        session.expect(Task("encode"), (1, 5, 16, 16))  # would have to be captured
        made.append(len(plans))

    threads = [threading.Thread(target=expect) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        tiled.encode(x[0])
    for thread in threads:
        thread.join()
    assert made == [4] * 3
    monkeypatch.setattr(prepared, "choose_plan", lambda *_, **__: pytest.fail("a plan"))
    for one in x:
        assert_close(tiled.encode(one).latent_dist.mean, model.encode(one).latent_dist.mean)


def test_who_expects_goes_ahead_and_what_has_run_is_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls then follow one another before their results are there, so that sizes are recorded sooner."""
    tiled = TiledVAE(model_of("AutoencoderKL"), "cpu", strip=256)
    x = torch.randn(1, 3, 16, 24)
    tiled.encode(x)
    (session,) = tiled._sessions.values()
    assert not session._runs.ahead
    side = session._sides[Task("encode")]
    monkeypatch.setattr(side, "expect", lambda inputs, *_: planned.append(tuple(inputs[0].shape)))
    planned: list[tuple[int, ...]] = []
    session.expect(Task("encode"), tuple(x.shape))
    assert not planned
    session.expect(Task("encode"), (1, 3, 24, 24))
    assert planned == [(1, 3, 24, 24)]
    assert session._runs.ahead


def test_nothing_is_expected_where_memory_is_named() -> None:
    tiled = TiledVAE(model_of("AutoencoderKL"), "cpu", vram="64GiB")
    x = torch.randn(1, 3, 16, 24)
    session = tiled._session(x.device, torch.float32)
    session._sides[Task("encode")].capture([x], Call())
    session.expect(Task("encode"), (1, 3, 32, 24))
    assert not session._sides[Task("encode")]._plans
