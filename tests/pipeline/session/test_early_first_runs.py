"""New sizes whose runs begin before the model is looked at: a model that has changed gives its new numbers. A GPU does
so (``tests/gpu/test_changes.py``); here a CPU is told to."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from kinds_of_changes import CHANGES, Research, undone
from slow_but import slow_but

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.plan.schedule import Schedule
from tvae.pipeline.errors import UnsupportedOp
from tvae.pipeline.session import session, weights
from tvae.pipeline.session.early_runs import EarlyRuns
from tvae.pipeline.session.sides import Sides
from tvae.pipeline.session.weights import PreparedWeights

KINDS = ["written_in_secret", "hooked", "exchanged"]
QUICK: list[bool] = []
"""Of each size that came for the first time: was it planned before the model was looked at?"""
COLLECTS: list[bool] = []
"""Was Python's collector on then?"""


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    quickly_ready = Sides.quickly_ready

    def noted(*given: Any, **more: Any) -> Any:
        ready = quickly_ready(*given, **more)
        QUICK.append(ready is not None)
        COLLECTS.append(gc.isenabled())
        return ready

    def start(weights: PreparedWeights, _now: object = None) -> object:
        watch = weights._watch
        return "now" if watch is not None and watch.weights == [*weights._asked] else None

    def runs(runs: Any, weights: Any, still: Any, peers: Any, _serves: None, *more: Any) -> EarlyRuns:
        return EarlyRuns(runs, weights, still, peers, lambda _ready: True, *more)

    monkeypatch.setattr(Sides, "quickly_ready", noted)
    monkeypatch.setattr(PreparedWeights, "start", start)
    monkeypatch.setattr(session, "EarlyRuns", runs)
    QUICK.clear()
    COLLECTS.clear()
    with undone(monkeypatch, tmp_path):
        yield


def agrees(tiled: TiledVAE, model: Research, size: Sequence[int]) -> None:
    x = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(size[0]))
    want, found = model.encode(x), tiled.encode(x)
    assert float((found - want).norm() / want.norm()) < 1e-5


def test_a_model_that_stays_begins_early() -> None:
    model = Research()
    tiled = TiledVAE(model, "cpu", allow_whole=True)
    for size in ((8, 6), (11, 10), (9, 12), (11, 10)):
        agrees(tiled, model, size)
    assert QUICK == [True, True], "of the second and the third size"


@pytest.mark.parametrize("enabled", [True, False])
def test_pythons_collector_is_left_as_it_is(enabled: bool) -> None:
    """Also while a new size begins: other threads go by it, too."""
    model = Research()
    tiled = TiledVAE(model, "cpu", allow_whole=True)
    agrees(tiled, model, (8, 6))
    if not enabled:
        gc.disable()
    try:
        agrees(tiled, model, (11, 10))
        assert [enabled] == COLLECTS
        assert gc.isenabled() == enabled
        with pytest.raises(UnsupportedOp, match="channel"):
            tiled.encode(torch.zeros(1, 5, 8, 9))
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def young() -> list[Schedule]:
    """Those through which the collector will look with what is made next."""
    return [one for one in (*gc.get_objects(0), *gc.get_objects(1)) if isinstance(one, Schedule)]


def test_pythons_collector_looks_through_a_plan_once() -> None:
    """It looked through those of ten sizes once more, while one call waited for it."""
    model = Research()
    tiled = TiledVAE(model, "cpu", allow_whole=True)
    for quick, size in enumerate(((8, 6), (11, 10), (9, 12))):
        agrees(tiled, model, size)
        assert len(QUICK) == quick
        assert not young()
    gc.disable()
    try:
        agrees(tiled, model, (12, 9))
        assert young()
    finally:
        gc.enable()


@pytest.mark.long
@pytest.mark.parametrize("name", slow_but(KINDS, CHANGES))
def test_a_change(name: str) -> None:
    model = Research()
    tiled = TiledVAE(model, "cpu", allow_whole=True)
    agrees(tiled, model, (8, 6))
    for size in ((9, 8), (12, 7)):
        CHANGES[name](model)
        agrees(tiled, model, size)
        agrees(tiled, model, (8, 6))
    assert QUICK


@pytest.mark.long
@pytest.mark.parametrize("seed", slow_but([0], range(12)))
def test_changes_one_after_another(seed: int) -> None:
    chance = random.Random(seed)
    model = Research(seed)
    tiled = TiledVAE(model, "cpu", allow_whole=True)
    agrees(tiled, model, (8, 6))
    for turn, name in enumerate(chance.choices([*CHANGES], k=6)):
        CHANGES[name](model)
        agrees(tiled, model, (9 + turn, 5 + turn))


def test_a_weight_that_is_gone_is_the_callers_error() -> None:
    model = Research()
    tiled = TiledVAE(model, "cpu", allow_whole=True)
    agrees(tiled, model, (8, 6))
    part = next(m for m in model.modules() if isinstance(m, torch.nn.Conv2d))
    del part.weight
    with pytest.raises(Exception, match="weight"):
        tiled.encode(torch.zeros(1, 3, 9, 8))


def test_the_weights_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new size gets those of the size before; whether they are what they were is seen when its run has begun."""
    states = weights._states
    looks: list[int] = []
    monkeypatch.setattr(weights, "_states", lambda given: looks.append(len(given)) or states(given))
    model = Research()
    tiled = TiledVAE(model, "cpu", allow_whole=True)
    agrees(tiled, model, (8, 6))
    looks.clear()
    agrees(tiled, model, (11, 10))
    assert QUICK == [True]
    assert not looks
    with torch.no_grad():
        next(model.parameters()).mul_(1.5)
    agrees(tiled, model, (9, 12))
    assert looks, "in the run after the one that was thrown away"
