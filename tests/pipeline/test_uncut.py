"""Programs that cannot be cut, or not everywhere: told by name, and planned as they run when they are asked for."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from inside import compiled_of, runners_of
from live_bytes import LiveBytes
from slow_but import slow_but
from tiny_vaes import relative_l2, waves
from torch import Tensor, nn
from uncut_models import CUT, UNCUT, Uncut

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.errors import PlanError, UnsupportedOp, in_module
from tvae.pipeline.memory import limits as budget

MIB = 1 << 20


def built(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return kind().eval()


def errors(model: nn.Module, tiled: TiledVAE, x: Tensor) -> tuple[float, float]:
    """Of the strips and of the model itself, against float64."""
    with torch.no_grad():
        own, want = model.decode(x)[0], type(model)()  # type: ignore[operator]
        want.load_state_dict(model.state_dict())
        wide = want.double().eval().decode(x.double())[0]  # type: ignore[operator]
        return relative_l2(tiled.decode(x)[0], wide), relative_l2(own, wide)


@pytest.mark.parametrize("name", CUT)
def test_coordinates_and_tables_are_cut_like_anything_else(name: str) -> None:
    model = built(CUT[name])
    tiled = TiledVAE(model, strip=5)
    for height, width in ((32, 24), (46, 20), (30, 30), (2, 20)):
        x = waves((2, 3, height, width))
        ours, own = errors(model, tiled, x)
        assert ours <= max(1e-5, 1.02 * own)
        plan = tiled.plan(tuple(x.shape), "decode")
        assert plan.strips > 5 or height == 2
        assert plan.whole == ()


@pytest.mark.long
@pytest.mark.parametrize("name", UNCUT)
def test_what_cannot_be_cut_is_refused_by_name_and_exact_when_it_is_asked_for(name: str) -> None:
    kind, op, module = UNCUT[name]
    model, x = built(kind), waves((1, 3, 12, 20))
    told = rf"^operation '{re.escape(op)}' {in_module(module)} cannot be computed in strips: .*; pass allow_whole=True"
    refusing = TiledVAE(model)
    for ask in (lambda: refusing.decode(x), lambda: refusing.plan(tuple(x.shape), "decode")):
        with pytest.raises(UnsupportedOp, match=told) as caught:
            ask()
        assert "\n" not in str(caught.value)
    tiled = TiledVAE(model, allow_whole=True)
    ours, own = errors(model, tiled, x)
    assert ours <= max(1e-5, 1.02 * own)
    plan = tiled.plan(tuple(x.shape), "decode")
    assert f"'{op}' {in_module(module)}" in plan.whole[0]
    assert f"runs whole, exact but in more memory than strips: {plan.whole[0]}" in str(plan)


@pytest.mark.parametrize("name", slow_but([n for n in UNCUT if n not in ("Recurrent", "Looped", "Grid")], UNCUT))
def test_whole_values_are_in_the_plan(name: str) -> None:
    """Bytes of all tensors alive at once; workspaces of operations are in the plan alone."""
    model = built(UNCUT[name][0])
    x = waves((1, 3, 48, 256))
    tiled = TiledVAE(model, allow_whole=True, strip=16)
    tiled.decode(x)
    prepared = [t for runner in runners_of(tiled) for t in runner._constants.values()]
    with torch.no_grad(), LiveBytes([*model.parameters(), *prepared]) as live:
        tiled.decode(x)
    said = tiled.plan(tuple(x.shape), "decode").peak_bytes
    assert live.peak <= 1.08 * said
    assert said <= 1.35 * live.peak


def test_the_places_of_largest_values_are_in_the_plan() -> None:
    """Pooling makes them, too, as long numbers."""
    model, x = built(CUT["Numbered"]), waves((1, 3, 48, 256))
    tiled = TiledVAE(model, strip=16)
    tiled.decode(x)
    prepared = [t for runner in runners_of(tiled) for t in runner._constants.values()]
    with torch.no_grad(), LiveBytes([*model.parameters(), *prepared]) as live:
        tiled.decode(x)
    said = tiled.plan(tuple(x.shape), "decode").peak_bytes
    assert live.peak <= 1.08 * said
    assert said <= 1.35 * live.peak


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system says: a process of 300 MiB on a machine of 4 GiB."""
    monkeypatch.setattr(budget, "_resident", lambda: 300 * MIB)
    monkeypatch.setattr(budget, "_CPU_SPARE", 0)
    monkeypatch.setattr(budget, "available_bytes", lambda: 4096 * MIB)


@pytest.mark.long
@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("name", ["Number", "Transposed"])
def test_a_budget_holds_what_runs_whole_too(name: str) -> None:
    model, x = built(UNCUT[name][0]), waves((1, 3, 512, 640))
    with pytest.raises(PlanError, match=r"^a budget of 200.0 MiB is too small; the smallest that works is \d+ MiB"):
        TiledVAE(model, allow_whole=True, vram="200MiB").decode(x)
    with pytest.raises(PlanError) as caught:
        TiledVAE(model, allow_whole=True, vram="1MiB").plan(tuple(x.shape), "decode")
    assert caught.value.enough is not None
    assert caught.value.enough > 300 * MIB + 2 * 8 * x[0, 0].numel() * 4
    TiledVAE(model, allow_whole=True, vram=caught.value.enough).decode(x)
    with pytest.raises(PlanError):
        TiledVAE(model, allow_whole=True, vram=caught.value.enough - 2 * MIB).decode(x)


@pytest.mark.parametrize("shape", [(1, 3, 1, 24), (1, 3, 1, 1), (1, 3, 24, 1)], ids=str)
def test_a_single_row_or_column_is_no_reason_to_refuse(shape: tuple[int, ...]) -> None:
    model = built(CUT["Spaced"])
    ours, own = errors(model, TiledVAE(model), waves(shape))
    assert ours <= max(1e-5, 1.02 * own)


def test_what_made_the_height_a_constant_is_kept_with_the_graph() -> None:
    tiled = TiledVAE(built(UNCUT["Looped"][0]), allow_whole=True)
    tiled.plan((1, 3, 6, 8), "decode")
    (compiled,) = compiled_of(tiled)
    (graphs,) = compiled.captures._graphs.values()  # of other sizes, too, where the disk has some
    for captured in graphs:
        assert captured.graph.fixed is not None
        assert Graph.from_json(captured.graph.to_json()).fixed == captured.graph.fixed


def test_one_row_of_latents_is_no_reason_to_refuse() -> None:
    """There is no lower strip, whatever made the height a constant."""

    class Lowered(Uncut):
        def between(self, h: Tensor) -> Tensor:
            return F.avg_pool2d(h, (int(h.shape[2]), 4))

    model = built(Lowered)
    ours, own = errors(model, TiledVAE(model), waves((1, 3, 4, 24)))
    assert ours <= max(1e-5, 1.02 * own)


def test_a_height_that_is_tied_to_the_width_is_cut_all_the_same() -> None:
    class Square(Uncut):
        def between(self, h: Tensor) -> Tensor:
            return h * 2 if h.shape[2] == h.shape[3] else h

    model, x = built(Square), waves((1, 3, 16, 16))
    tiled = TiledVAE(model, strip=3)
    ours, own = errors(model, tiled, x)
    assert ours <= max(1e-5, 1.02 * own)
    assert tiled.plan(tuple(x.shape), "decode").strips == 6


RESIDENT = """
import sys
import torch
from tiny_vaes import waves
from uncut_models import CUT, UNCUT
from tvae.pipeline import TiledVAE
from tvae.pipeline.memory.heap import return_what_is_free

def bytes_of(line):
    with open("/proc/self/status") as status:
        return next(int(one.split()[1]) << 10 for one in status if one.startswith(line))

torch.set_num_threads(1)
torch.manual_seed(3)
name, shape = sys.argv[1], (1, 3, *map(int, sys.argv[2:]))
model = (CUT[name] if name in CUT else UNCUT[name][0])().eval()
tiled, x = TiledVAE(model, allow_whole=True, vram="3GiB"), waves(shape)
tiled.decode(x)
said = tiled.plan(shape, "decode").peak_bytes

def taken():
    return_what_is_free()  # what an earlier call left has no part in what this one takes
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")
    before = bytes_of("VmRSS") - x.nbytes
    tiled.decode(x)
    return bytes_of("VmHWM") - before

# a system short of memory takes code's pages away, which then count again: that only adds
print(said, sorted(taken() for _ in range(5))[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is asked of the system in its own way")
@pytest.mark.parametrize("name", [*CUT, *UNCUT])
def test_resident_memory_is_what_was_planned(name: str) -> None:
    """The process at its peak, beyond what it holds between calls: workspaces of operations included, and pages of the
    heap that it had given back."""
    shape = ("640", "512")
    paths = os.pathsep.join(path for path in sys.path if path)
    run = subprocess.run(
        [sys.executable, "-c", RESIDENT, name, *shape],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
    )
    assert run.returncode == 0, run.stderr
    said, peak = map(int, run.stdout.split()[-2:])
    print(f"\n{name}: said {said / MIB:.1f} MiB, resident {peak / MIB:.1f}")
    assert peak <= 1.08 * said + 10 * MIB
    assert said <= 1.25 * peak
