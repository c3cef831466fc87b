"""Caches of streaming models that do not fit on the device: elsewhere, by rows, with the same results."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from live_bytes import LiveBytes
from tiny_vaes import TINY, relative_l2
from torch import Tensor

from tvae.pipeline.errors import PlanError
from tvae.pipeline.memory import limits as budget
from tvae.pipeline.memory.offloaded_cache import OffloadedCache, holdable
from tvae.pipeline.session import choose_plan as planning
from tvae.pipeline.session.model import Model, open_model
from tvae.pipeline.session.task import Task

CPU = torch.device("cpu")
SIZE = (12, 20)  # latent rows and columns


@pytest.fixture(
    scope="module", params=["AutoencoderKLWan", pytest.param("AutoencoderKLCogVideoX", marks=pytest.mark.slow)]
)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("vae")
    model: Any = TINY[family].build()
    model.save_pretrained(found)
    return found


def opened(folder: Path) -> Model:
    return open_model(str(folder), device="cpu", dtype="float32", strip=2, spill=None)


def chunks(model: Model, side: str, frames: int) -> list[Tensor]:
    channels = model.info.latent_channels if side == "decode" else 3
    height, width = (n * (1 if side == "decode" else model.info.spatial_factor) for n in SIZE)
    x = torch.randn(1, channels, frames, height, width, generator=torch.Generator().manual_seed(2))
    stream = model.stream(side)  # type: ignore[arg-type]
    assert stream is not None
    return [part.clone() for part in x.split([*stream.cuts.sizes(frames)], 2)]


def limit(monkeypatch: pytest.MonkeyPatch, room: int | None) -> None:
    monkeypatch.setattr(planning, "activation_budget", lambda *_: room)


def smallest(model: Model, side: str, x: list[Tensor], caches: list[Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """The least that a step needs that holds its caches."""
    monkeypatch.setattr(budget, "_resident", lambda: 300 << 20)  # it may change between the two looks at it
    monkeypatch.setattr(budget, "_CPU_SPARE", 0)
    limit(monkeypatch, 1)
    inputs = [x[1], *(torch.empty(c.shape, device="meta") for c in caches)]
    with pytest.raises(PlanError) as refused:
        model._session._sides[Task(side, step=True)].check(inputs, model.limits, planning_call())
    assert refused.value.enough is not None
    program = model._session._sides[Task(side, step=True)]._lowered("height", inputs, planning_call())[1]
    taken = planning._overhead(program, CPU, model.limits, None, 0)
    return taken.left(refused.value.enough)


def planning_call() -> Any:
    from tvae.pipeline.models.calls import Call

    return Call()


@pytest.mark.slow
@pytest.mark.parametrize("side", ["decode", "encode"])
def test_the_same_results_in_less_memory(folder: Path, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, None)
    free = opened(folder)
    x = chunks(free, side, 4 if side == "decode" else 25)
    stream = free.stream(side)  # type: ignore[arg-type]
    assert stream is not None
    want = [stream.step(part) for part in x]
    assert all(isinstance(cache, Tensor) for cache in stream.caches)
    enough = smallest(free, side, x, stream.caches, monkeypatch)

    limit(monkeypatch, enough - (3 << 19))
    tight = opened(folder)
    held = tight.stream(side)  # type: ignore[arg-type]
    assert held is not None
    for n, (part, expected) in enumerate(zip(x, want, strict=True)):
        with LiveBytes(tight._stored.values()) as live:
            got = held.step(part)
        assert relative_l2(got, expected) < 2e-6  # strips round as they are cut, by machine
        if n > 1:  # captured, and weights loaded
            assert live.peak <= enough
    assert all(isinstance(c, OffloadedCache) == holdable(tuple(c.shape)) for c in held.caches)
    for cache, other in zip(held.caches, stream.caches, strict=True):
        torch.testing.assert_close(cache.cpu(), other.cpu(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_caches_have_left_the_device_when_a_step_begins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the first step left there: nobody holds on to them while the second computes."""
    limit(monkeypatch, None)
    free = opened(folder)
    x = chunks(free, "decode", 4)
    stream = free.stream("decode")
    assert stream is not None
    for part in x:
        stream.step(part)
    limit(monkeypatch, smallest(free, "decode", x, stream.caches, monkeypatch) - (3 << 19))
    tight = opened(folder)
    stream, steps = tight.stream("decode"), tight._session.steps("decode")
    assert stream is not None
    assert steps is not None
    stream.step(x[0])
    left = [weakref.ref(c) for c in stream.caches if isinstance(c, Tensor) and holdable(tuple(c.shape))]
    assert left
    real, seen = steps._runs.compute, list[bool]()

    def compute(inputs: Any, sinks: Any, *, beside: int, last: bool) -> list[Tensor]:
        seen.append(any(one() is not None for one in left))
        return real(inputs, sinks, beside=beside, last=last)

    monkeypatch.setattr(steps._runs, "compute", compute)
    stream.step(x[1])
    assert seen == [False]


@pytest.mark.slow
def test_a_stream_goes_on_with_what_another_saved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From caches on the device to caches elsewhere, and back."""
    limit(monkeypatch, None)
    free = opened(folder)
    x = chunks(free, "decode", 4)
    whole = free.stream("decode")
    assert whole is not None
    want = [whole.step(part) for part in x]
    enough = smallest(free, "decode", x, whole.caches, monkeypatch)
    saved: list[Tensor] = []
    for n, (part, expected) in enumerate(zip(x, want, strict=True)):
        limit(monkeypatch, enough - (3 << 19) if n % 2 else None)
        model = opened(folder)
        stream = model.stream("decode")
        assert stream is not None
        stream.restore(saved)
        # by another plan: law 1 is for all of a result, and single elements near zero may differ by more
        assert relative_l2(stream.step(part), expected) <= 2e-6
        assert any(isinstance(cache, OffloadedCache) for cache in stream.caches) == bool(n % 2)
        saved = stream.saved()
        assert stream.nbytes == sum(cache.nbytes for cache in saved)


@pytest.mark.slow
def test_a_plan_says_where_they_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, None)
    model = opened(folder)
    shape = (1, model.info.latent_channels, 4, *SIZE)
    plan: Any = model.plan(shape, "decode")
    assert plan.caches_at == "device"
    x = chunks(model, "decode", 4)
    stream = model.stream("decode")
    assert stream is not None
    for part in x:
        stream.step(part)
    limit(monkeypatch, smallest(model, "decode", x, stream.caches, monkeypatch) - (3 << 19))
    tight: Any = opened(folder).plan(shape, "decode")
    assert tight.caches_at == "disk"
    assert (tight.caches, tight.cache_bytes) == (plan.caches, plan.cache_bytes)
    assert tight.steps[-1].plan.peak_bytes < plan.steps[-1].plan.peak_bytes - plan.cache_bytes
    assert "on disk beside them" in str(tight)


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_cache_comes_and_goes_by_rows(channels_last: bool, tmp_path: Path) -> None:
    value = torch.randn(1, 6, 2, 9, 5)
    held = OffloadedCache(tuple(value.shape), value.dtype, CPU, channels_last, tmp_path).take(value)
    assert held.nbytes == value.nbytes
    assert torch.equal(held.cpu(), value)
    assert torch.equal(held.fetch(2, 5).result(), value[..., 2:5, :])
    held.keep(2, 5, value[..., 2:5, :] + 1).result()
    assert torch.equal(held.fetch(4, 6).result(), torch.cat([value[..., 4:5, :] + 1, value[..., 5:6, :]], -2))
    held.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("shape", "can"), [((1, 4, 2, 8, 8), True), ((1, 4, 8), False), ((1, 4, 2, 1, 8), False)])
def test_maps_alone_come_by_rows(shape: tuple[int, ...], can: bool) -> None:
    assert holdable(shape) == can
