"""Recorded runs begin before the model is looked at as a whole: a change is seen all the same, and in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from changes import CHANGES
from tiny_vaes import TINY, relative_l2, result
from torch import Tensor

from tvae.pipeline import TiledVAE
from tvae.pipeline.session.identity.identity import Identity
from tvae.pipeline.session.runner import Runner
from tvae.pipeline.session.session import Session

KL = TINY["AutoencoderKL"]
QUICK = ("hook", "written")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What happens in a call. Without a GPU nothing is recorded: runs that came once stand for recorded ones."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seen: list[str] = []
    ran: set[int] = set()
    run, look, places, replay = Runner.run, Identity.unchanged, Runner.weights_in_place, Session.begun

    def replayed(*args: Any) -> Any:
        found = replay(*args)
        seen.append("another way" if found is None else "replayed")
        return found

    def running(self: Runner, *args: Any, **more: Any) -> list[Tensor]:
        seen.append("run")
        ran.add(id(self))
        return run(self, *args, **more)

    monkeypatch.setattr(Runner, "run", running)
    monkeypatch.setattr(Runner, "recorded", property(lambda self: id(self) in ran))
    monkeypatch.setattr(Identity, "unchanged", lambda self: seen.append("look") or look(self))
    monkeypatch.setattr(Runner, "weights_in_place", lambda self: seen.append("places") or places(self))
    monkeypatch.setattr(Session, "begun", replayed)
    return seen


def agrees(tiled: Any, model: Any, x: Tensor) -> None:
    with torch.no_grad():
        own = result(model.decode(x))
    assert relative_l2(result(tiled.decode(x)), own) <= 1e-5


def test_the_model_is_looked_at_while_the_run_is_under_way(steps: list[str]) -> None:
    model, x = KL.build(), KL.input("decode", 9, 6)
    tiled = TiledVAE(model, "cpu", strip=4)
    agrees(tiled, model, x)
    steps.clear()
    agrees(tiled, model, x)
    assert steps == ["places", "run", "look", "replayed"]
    steps.clear()
    agrees(tiled, model, KL.input("decode", 7, 6))
    assert "places" not in steps, "of another size nothing is recorded"


@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in CHANGES])
def test_a_change_is_seen(name: str, steps: list[str]) -> None:
    model, x = KL.build(), KL.input("decode", 9, 6)
    tiled = TiledVAE(model, "cpu", strip=4, allow_whole=name in ("circular", "processor"))  # no rules for theirs
    agrees(tiled, model, x)
    CHANGES[name](model)
    model.use_tiling = False
    steps.clear()
    agrees(tiled, model, x)
    if name not in ("tiling", "there_and_back"):
        assert "replayed" not in steps
    agrees(tiled, model, x)
    steps.clear()
    agrees(tiled, model, x)
    assert steps[-1] == "replayed"


def test_memory_that_is_no_longer_the_weights_is_not_read(steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/gpu/test_changes.py frees the memory of a model on a GPU."""
    model, x = KL.build(), KL.input("decode", 9, 6)
    tiled = TiledVAE(model, "cpu", strip=4)
    agrees(tiled, model, x)
    monkeypatch.setattr("tvae.pipeline.session.runner.places_of", lambda weights: [0] * len(weights))
    steps.clear()
    agrees(tiled, model, x)
    assert steps[:2] == ["places", "another way"]
