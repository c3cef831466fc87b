"""A changed model and an untouched one in processes of their own, over one cache: each gives its own numbers."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from changes import LASTING
from slow_but import slow_but

HELPERS = Path(__file__).parents[1] / "helpers"
_PROCESS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch
from changes import CHANGES
from tiny_vaes import TINY, relative_l2, result
from tvae.pipeline import TiledVAE
tiny = TINY["AutoencoderKL"]
found = []
for change, side, *size in json.loads(sys.argv[2]):
    model, x = tiny.build(), tiny.input(side, *size)
    if change:
        CHANGES[change](model)
    with torch.no_grad():
        wanted = result(getattr(model, side)(x))
    ours = result(getattr(TiledVAE(model, "cpu", strip=3, allow_whole=True), side)(x))
    found.append(relative_l2(ours, wanted))
print(json.dumps(found))
"""

Cell = tuple[str, str, int, int]


def errors(cells: list[Cell], cache: Path) -> list[float]:
    """Of a new process that runs these models one after the other."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-c", _PROCESS, str(HELPERS), json.dumps(cells)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def pairs(count: int, seed: int) -> list[tuple[Cell, Cell]]:
    """(changed, untouched) of one side and size; every change as often as any other."""
    dice = random.Random(seed)
    return [
        ((LASTING[n % len(LASTING)], side, *size), ("", side, *size))
        for n in range(count)
        for side, size in [(dice.choice(("decode", "encode")), (dice.randint(3, 11), dice.randint(3, 9)))]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("changes", slow_but([2], [2, len(LASTING)]))
def test_models_before_and_behind_others(changes: int, tmp_path: Path) -> None:
    """So many changes in one process, an untouched model in the next; all changes: and the other way round."""
    changed = [pair[0] for pair in pairs(changes, 0)]
    untouched: list[Cell] = [("", "decode", 9, 6), ("", "encode", 9, 6)]
    runs = (changed, untouched, untouched[::-1], changed[::-1])
    for cells in runs[: 2 if changes == 2 else 4]:
        assert max(errors(cells, tmp_path)) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("changed_first", [True, False])
def test_thirty_pairs(changed_first: bool, tmp_path: Path) -> None:
    for changed, untouched in pairs(15, int(changed_first)):
        for cell in (changed, untouched) if changed_first else (untouched, changed):
            assert errors([cell], tmp_path) <= [1e-5], cell
