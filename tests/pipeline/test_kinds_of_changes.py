"""Changes of all kinds between calls at several sizes: each call has the numbers of the model as it is then."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from kinds_of_changes import CHANGES, Research, undone
from slow_but import slow_but
from torch import Tensor

from tvae.pipeline import TiledVAE

SIZES = ((8, 6), (11, 10), (5, 7))


@pytest.fixture(autouse=True)
def afterwards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    with undone(monkeypatch, tmp_path):
        yield


def agrees(tiled: TiledVAE, model: Research, turn: int) -> Tensor:
    x = torch.randn(1, 3, *SIZES[turn % 3], generator=torch.Generator().manual_seed(turn))
    want, found = model.encode(x), tiled.encode(x)
    assert float((found - want).norm() / want.norm()) < 1e-5
    return want


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that has the graph of the model as it is at first."""
    folder = tmp_path_factory.mktemp("captured")
    with pytest.MonkeyPatch.context() as patched, undone(patched, folder):
        agrees(TiledVAE(Research(), "cpu", strip=3, allow_whole=True), Research(), 0)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("name", CHANGES)
def test_a_change(name: str, captured: Path, tmp_path: Path) -> None:
    """Also where the graphs come from disk, whose constants are copies."""
    shutil.copytree(captured, tmp_path, dirs_exist_ok=True)
    model = Research()
    tiled = TiledVAE(model, "cpu", strip=3, allow_whole=True)
    seen = [agrees(tiled, model, 0)]
    for _ in range(2):
        CHANGES[name](model)
        seen.append(agrees(tiled, model, 0))
    agrees(tiled, model, 1)
    assert name == "unhooked" or not torch.equal(seen[0], seen[1]), "the change shows in the model's own numbers"


@pytest.mark.long
@pytest.mark.parametrize("seed", slow_but([0], range(12)))
def test_changes_one_after_another(seed: int) -> None:
    chance = random.Random(seed)
    model = Research(seed)
    tiled = TiledVAE(model, "cpu", strip=3, allow_whole=True)
    agrees(tiled, model, 0)
    for turn, name in enumerate(chance.choices([*CHANGES], k=8), 1):
        CHANGES[name](model)
        agrees(tiled, model, turn)
