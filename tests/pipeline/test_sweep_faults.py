"""What a sweep takes for a fault of a cell: of its numbers, its memory, its time, its refusals."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from slow_but import slow_but
from sweeping.cells import Cell
from sweeping.check import Bench
from sweeping.families import swept
from sweeping.limits import Limits
from sweeping.meters import Call
from torch import Tensor

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import PlanError, UnsupportedOp

CPU = torch.device("cpu")
CELL = Cell(1, 0, 0, "random", "taesd", "decode", 96, 64, None, 1, "float32", None, False, False, 1)


def bench(**limits: Any) -> Bench:
    return Bench(swept(True), CPU, "cpu", Limits(**{"seconds": 600.0, **limits}))


class Metered:
    """A meter that says what it is told."""

    least, drift = 0, 0

    def __init__(self, tensors: int = 0, held: int = 0, kept: int = 0) -> None:
        self.told, self.stays, self.begun = (tensors, held), kept, 0

    def begin(self) -> None:
        pass

    def call(self, run: Any) -> Call:
        return Call(run(), 0.0, *self.told, begun=self.begun)

    def kept(self) -> int:
        return self.stays

    def free(self) -> int:
        return 1 << 40

    def total(self) -> int:
        return 1 << 40


def fallen(of: Bench, cell: Cell = CELL, meter: Any = None) -> str:
    if meter is not None:
        of._meter = meter
    return "; ".join(of.run(cell).fell)


def test_a_sound_cell_does_not_fall_short() -> None:
    result = bench().run(replace(CELL, calls=3))
    assert result.fell == []
    assert 0 < result.facts["error"] < 1e-5
    assert result.facts["exact"] == "float64"
    assert result.facts["first"] > 0
    json.dumps(result.to_json())


@pytest.mark.parametrize("call", slow_but([1], [0, 1]))
def test_wrong_numbers_of_any_call(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count()
    right = TiledVAE.decode

    def decode(self: TiledVAE, z: Tensor, **options: Any) -> Any:
        out = right(self, z, **options)
        if next(calls) == call:
            out.sample[..., 3, :] += 0.01
        return out

    monkeypatch.setattr(TiledVAE, "decode", decode)
    assert "an error of" in fallen(bench(), replace(CELL, calls=2))


@pytest.mark.slow
def test_wrong_numbers_in_a_lower_type(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = replace(CELL, dtype="bfloat16")
    assert fallen(bench(), cell) == ""
    right = TiledVAE.decode

    def decode(self: TiledVAE, z: Tensor, **options: Any) -> Any:
        out = right(self, z, **options)
        out.sample += 0.3 * out.sample.std() * torch.randn_like(out.sample)
        return out

    monkeypatch.setattr(TiledVAE, "decode", decode)
    assert "times the untiled model's error" in fallen(bench(), cell)


@pytest.mark.slow
def test_what_falls_short_by_chance_is_tried_again_with_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """One model and input by which ours errs more, of many by which it does not; in the same budget."""
    cell, right = replace(CELL, dtype="bfloat16", budget="least*1.5"), TiledVAE.decode
    models: list[int] = []
    budgets: set[Any] = set()

    def decode(self: TiledVAE, z: Tensor, **options: Any) -> Any:
        out = right(self, z, **options)
        if id(self) not in models:
            models.append(id(self))
            held.append(self)
        budgets.add(self._vram)
        if models.index(id(self)) < few:
            out.sample += 0.3 * out.sample.std() * torch.randn_like(out.sample)
        return out

    few, held = 1, list[TiledVAE]()
    monkeypatch.setattr(TiledVAE, "decode", decode)
    result = bench().run(cell)
    assert result.fell == []
    assert result.facts["of_own"] > result.facts["allowed"]
    assert 0.9 < result.facts["again_own"] < 1.02
    assert len(models) == 13
    assert len(budgets) == 1
    assert None not in budgets
    few = 1000
    assert "times the untiled model's error" in fallen(bench(), cell)


@pytest.mark.slow
def test_a_peak_beyond_the_plan_and_a_plan_beyond_the_peak() -> None:
    of = bench(room=0)
    said = bench().run(CELL).facts["said"]
    x = 4 * 12 * 8 * 4
    assert fallen(of, meter=Metered(said - x)) == ""
    assert fallen(of, meter=Metered(int(1.08 * said) - x)) == ""
    assert "were said" in fallen(of, meter=Metered(int(1.08 * said) - x + 2)), "the input counts"
    of = bench(room=0)
    assert "said for a peak of" in fallen(of, meter=Metered(int(said / 1.3) - x))
    assert fallen(of, meter=Metered(int(said / 1.3) - x)) == "", "it may be recorded by now"
    assert of.run(replace(CELL, dtype="bfloat16")).facts["again"] is False
    assert of.run(CELL).facts["again"] is False, "what was recorded went with the weights"


@pytest.mark.slow
def test_what_stays_behind() -> None:
    assert "stay behind" in fallen(bench(), meter=Metered(kept=1 << 30))


@pytest.mark.slow
def test_a_budget_that_is_not_kept() -> None:
    cell = replace(CELL, budget="6GiB")
    assert fallen(bench(), cell, Metered(held=6 << 30)) == ""
    beyond = Metered(held=(6 << 30) + (1 << 20))
    assert "held 6145 MiB of 6144" in fallen(bench(), cell, beyond)
    beyond.begun = 7 << 30  # recordings of another object, which go for this call
    assert fallen(bench(), cell, beyond) == ""


@pytest.mark.slow
def test_budgets_are_multiples_of_what_is_named() -> None:
    one, two = (bench().run(replace(CELL, budget=f"least*{factor}")).facts["named"] for factor in (1, 2))
    assert two / one == pytest.approx(2, rel=0.15)


@pytest.mark.slow
def test_a_slow_first_call() -> None:
    assert "a first call of" in fallen(bench(seconds=0.0, times=0.0))


@pytest.mark.slow
@pytest.mark.parametrize(("calls", "budget", "told"), [(2, None, True), (1, None, False), (2, "8GiB", False)])
def test_a_slow_later_call(calls: int, budget: str | None, told: bool) -> None:
    cell = replace(CELL, calls=calls, budget=budget)
    assert ("a later call of" in fallen(bench(seconds=0.0, times=1e9, warm=0.0), cell)) is told


def test_an_exception_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*_args: Any, **_options: Any) -> Any:
        raise UnsupportedOp("aten.flip", "decoder")

    monkeypatch.setattr(TiledVAE, "decode", decode)
    assert fallen(bench()).startswith(
        "UnsupportedOp: operation 'aten.flip' in module 'decoder' cannot be computed in strips: tvae has no rule"
    )


@pytest.mark.slow
def test_what_a_refusal_names_has_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """None named, one that is refused again, and one that was planned for and is refused."""
    cell = replace(CELL, budget="least*1.000")
    assert "named" not in fallen(bench(), replace(CELL, budget="64MiB"))
    right = TiledVAE.plan

    def nothing(*_args: Any, **_options: Any) -> Any:
        raise PlanError("a budget of 1.0 MiB is too small")

    monkeypatch.setattr(TiledVAE, "plan", nothing)
    assert "names no budget" in fallen(bench(), cell)

    def never(*_args: Any, **_options: Any) -> Any:
        raise PlanError("the smallest that works is 4096 MiB", 4 << 30)

    monkeypatch.setattr(TiledVAE, "plan", never)
    monkeypatch.setattr(TiledVAE, "decode", never)
    assert "were named as enough, and are not" in fallen(bench(), cell)
    assert fallen(bench(), replace(CELL, budget="64MiB")).startswith("PlanError")
    monkeypatch.setattr(TiledVAE, "plan", right)
    assert "planned, and then refused" in fallen(bench(), replace(CELL, budget="6GiB", plan_first=True))


def test_a_budget_that_holds_nothing_has_to_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TiledVAE, "plan", lambda *_args, **_options: None)
    assert "1 MiB was not refused" in fallen(bench(), replace(CELL, budget="least*1.500"))


@pytest.mark.slow
def test_where_the_untiled_model_does_not_fit_another_plan_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    strips: list[int | None] = []

    class Noted(TiledVAE):
        """Notes the strips that are asked for."""

        def __init__(self, *args: Any, **options: Any) -> None:
            strips.append(options.get("strip"))
            super().__init__(*args, **options)

    monkeypatch.setattr("sweeping.untiled.LARGE", 1)
    monkeypatch.setattr("sweeping.check.TiledVAE", Noted)
    result = bench().run(CELL)
    assert strips == [None, 4], "a third of 12 latent rows"
    assert result.fell == []
    assert result.facts["own_first"] == "maps of 2^31 elements"
    assert result.facts["exact"] == "another plan in float32"
    low = bench().run(replace(CELL, dtype="bfloat16"))
    assert low.fell == []
    assert 1e-4 < low.facts["error"] < 0.1
