"""A session: what it lets go of, what it plans for whole clips, and what it remembers from size to size."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from slow_but import slow_but
from sweeping.families import build, swept
from torch.multiprocessing.reductions import StorageWeakRef

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.plan import planner
from tvae.pipeline.errors import PlanError
from tvae.pipeline.session.clip_plan import ClipPlan
from tvae.pipeline.session.prepared import Compiled
from tvae.pipeline.session.session import Session

CPU = torch.device("cpu")


def model_and_input(name: str, side: str, frames: int = 9) -> tuple[torch.nn.Module, torch.Tensor]:
    of = swept(True)[name]
    geometry = of.geometry
    channels, step = (geometry.in_channels, geometry.spatial) if side == "encode" else (geometry.latent_channels, 1)
    time = []
    if geometry.temporal is not None:
        time = [frames if side == "encode" else geometry.lead + (frames - geometry.lead) // geometry.temporal]
    return build(of, CPU, seed=3), torch.randn(1, channels, *time, 6 * step, 5 * step)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("name", slow_but(["sdxl"], ["sdxl", "wan21", "cogvideox", "ltx"]))
@torch.no_grad()
def test_what_a_session_holds_goes_with_it(name: str, no_collector: None) -> None:
    """Copies of weights are gigabytes: they do not wait until Python looks for cycles."""
    module, x = model_and_input(name, "encode")
    tiled = TiledVAE(module, "cpu")
    tiled.encode(x)
    tiled.plan(tuple(x.shape), "encode")
    (session,) = tiled._sessions.values()
    left = [weakref.ref(session), weakref.ref(session._weights), weakref.ref(tiled)]
    del tiled, session
    assert [one() for one in left] == [None, None, None]
    small = TiledVAE(module, "cpu", vram="1MiB")
    with pytest.raises(PlanError):
        small.plan(tuple(x.shape), "encode")
    left = [weakref.ref(s) for s in small._sessions.values()] + [weakref.ref(small)]
    del small
    assert [one() for one in left] == [None] * len(left)


def test_a_session_of_a_gpu_goes_as_well(no_collector: None) -> None:
    """Recordings are gigabytes, too. Such a session starts runs in more ways; that it is made needs no GPU."""
    tiled = TiledVAE(model_and_input("sdxl", "encode")[0], "h200")
    session = tiled._session(torch.device("cuda"), torch.bfloat16)
    assert isinstance(session, Session)
    assert session._records
    assert session._early._serves is not None
    gone = weakref.ref(session)
    del tiled, session
    assert gone() is None


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["wan21"], ["wan21", "cogvideox"]))
def test_a_whole_clip_and_its_result_are_in_the_plan(name: str) -> None:
    module, x = model_and_input(name, "decode", 17)
    short = model_and_input(name, "decode", 9)[1].shape
    tiled = TiledVAE(module, "cpu")
    plans = [tiled.plan(tuple(shape), "decode") for shape in (x.shape, short)]
    with torch.no_grad():
        result = tiled.decode(x).sample
    for plan in plans:
        assert isinstance(plan, ClipPlan)
    assert plans[0].whole_bytes == x.nbytes + result.nbytes  # type: ignore[union-attr]
    steps = [plan.peak_bytes - plan.whole_bytes for plan in plans]  # type: ignore[union-attr]
    if plans[1].caches:  # type: ignore[union-attr]
        assert steps[0] == steps[1], "a step takes what it takes, however long the clip is"
    else:
        assert steps[0] > steps[1], "of one step no caches are made"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wan21", "cogvideox"])
@torch.no_grad()
def test_a_refusal_names_what_does_for_every_step_and_the_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tvae.pipeline.memory import limits as budget

    monkeypatch.setattr(budget, "_resident", lambda: 300 << 20)  # so that nothing but the plan counts
    module, z = model_and_input(name, "decode", 17)
    z = z.repeat_interleave(8, -1).repeat_interleave(8, -2)
    with pytest.raises(PlanError) as caught:
        TiledVAE(module, "cpu", vram="1MiB").plan(tuple(z.shape), "decode")
    enough = caught.value.enough
    assert enough is not None
    with pytest.raises(PlanError) as again:
        TiledVAE(module, "cpu", vram=enough - (24 << 20)).decode(z)
    assert again.value.enough is not None
    assert again.value.enough <= enough
    tiled = TiledVAE(module, "cpu", vram=enough)
    plan = tiled.plan(tuple(z.shape), "decode")
    assert plan.peak_bytes <= enough
    got, want = tiled.decode(z).sample, module.decode(z).sample  # type: ignore[operator]
    assert float((got - want).norm() / want.norm()) < 1e-5


@pytest.mark.long
@torch.no_grad()
def test_sizes_alike_are_cut_alike_without_comparing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    ways = planner.ways
    monkeypatch.setattr(planner, "ways", lambda *a: compared.append(1) or ways(*a))  # type: ignore[func-returns-value]
    module, x = model_and_input("sdxl", "encode")
    tiled = TiledVAE(module, "cpu", strip=2)

    def look(height: int, width: int) -> int:
        compared.clear()
        picture = torch.randn(1, x.shape[1], height, width)
        got, want = tiled.encode(picture), module.encode(picture)  # type: ignore[operator]
        got, want = got.latent_dist.mean, want.latent_dist.mean
        assert float((got - want).norm() / want.norm()) < 1e-5
        return len(compared)

    assert look(96, 64) > 0
    assert [look(64, 96), look(104, 72), look(80, 80)] == [0, 0, 0]
    assert look(256, 256) > 0, "so much larger that other cuts may pay"
    assert look(272, 264) == 0
    assert math.isfinite(tiled.plan((1, x.shape[1], 64, 88), "encode").peak_bytes)


@pytest.mark.slow
@pytest.mark.usefixtures("no_collector")
def test_a_refused_way_to_divide_a_clip_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal held the frames of all callers, and so the result, until the collector came by."""
    of, asked = swept(True)["cosmos"], []
    tiled = TiledVAE(build(of, CPU), "cpu")
    divided = Compiled._divided

    def refusing(self: Compiled, rows: str, *args: Any) -> Any:
        asked.append(rows)
        if len(asked) == 1:
            raise PlanError("this way needs more")
        return divided(self, rows, *args)

    monkeypatch.setattr(Compiled, "_divided", refusing)
    with torch.no_grad():
        result = tiled.decode(torch.randn(1, of.geometry.latent_channels, 3, 8, 8)).sample
    assert len(set(asked)) == 2, "another way was taken"
    memory = StorageWeakRef(result.untyped_storage())
    del result
    assert memory.expired()
