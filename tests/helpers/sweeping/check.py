"""One cell: run by the untiled model and by ours, and what of numbers, memory and time falls short."""

from __future__ import annotations

import copy
import gc
import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sweeping.appeal import appealed
from sweeping.budgets import Asked
from sweeping.cells import Cell
from sweeping.families import Swept, build
from sweeping.inputs import input_of, latents_of, options_of
from sweeping.limits import Limits
from sweeping.meters import Call, kernels_on_disk, meter_of
from sweeping.numbers import compared, errors_of
from sweeping.untiled import Untiled, is_lost, line_of
from tvae.pipeline import TiledVAE
from tvae.pipeline.bench.rivals import tensor_of
from tvae.pipeline.errors import PlanError

__all__ = ["Bench", "Limits", "Result"]

Row = dict[str, Any]
_OWN = "times the untiled model's error"
_ALIKE = 1.02
"""Times the untiled model's own error in float32, that ours may be where that is beyond the limit."""


@dataclass
class Result:
    """facts: what was measured. fell: how it fell short, in words; nothing where all is well."""

    cell: Cell
    facts: Row = field(default_factory=dict)
    fell: list[str] = field(default_factory=list)

    def to_json(self) -> Row:
        """JSON-able."""
        return {**self.cell.to_json(), **self.facts, "fell": self.fell}


@dataclass
class _Model:
    """One group's: the model as it is, and what wraps it. seen: inputs that it was called with."""

    group: int
    of: Swept
    module: nn.Module
    tiled: TiledVAE
    seen: set[Any]


class Bench:
    """Runs cells one after the other in this process; those of one group share one model."""

    def __init__(self, families: dict[str, Swept], device: torch.device, preset: str, limits: Limits) -> None:
        self._families, self._device, self._preset, self._limits = families, device, preset, limits
        self._meter = meter_of(device)
        self._model: _Model | None = None
        self._own: dict[tuple[str, str, str], float] = {}
        """The largest error of the untiled model so far, by family, side and type."""

    def run(self, cell: Cell) -> Result:
        """Never raises for what the cell does; what it does to the device may stop all that follow."""
        result = Result(cell)
        try:
            with torch.no_grad():
                self._run(cell, result)
        except Exception as error:
            if is_lost(error):
                raise
            result.fell.append(f"{type(error).__name__}: {line_of(error)}")
            self._model = None  # whatever state it is in
        return result

    def _run(self, cell: Cell, result: Result) -> None:
        model = self._prepared(cell)
        x = input_of(cell, model.of, model.module, self._device)
        facts = result.facts
        untiled = Untiled(model.of, model.module, self._meter)
        own, facts["own_first"] = untiled.run(cell, x, x.dtype)
        if own is None and "refused" in facts["own_first"]:
            facts["skipped"] = facts.pop("own_first")
            return
        exact = None
        if own is not None:
            wide = torch.float64 if x.dtype == torch.float32 else torch.float32
            exact, facts["exact"] = untiled.run(cell, x, wide)
            facts["exact"] = facts["exact"] if exact is None else str(wide).removeprefix("torch.")
        values, budget = self._ours(model, cell, x, result)
        if values:
            self._judge(model, cell, x, values, own, exact, result)
        if own is not None and exact is not None and any(_OWN in told for told in result.fell):
            again = appealed(cell, model.of, partial(TiledVAE, preset=self._preset), budget, self._meter, self._device)
            facts |= {"again_own": again.ratio, "again_allowed": again.allowed}
            result.fell = [told for told in result.fell if _OWN not in told or not again.fine]

    # -- the model -----------------------------------------------------------------------------------------------------
    def _prepared(self, cell: Cell) -> _Model:
        """The group's model in the cell's type."""
        if self._model is None or self._model.group != cell.group:
            self._model = None
            gc.collect()
            of = self._families[cell.family]
            module = build(of, self._device, seed=cell.group)
            self._model = _Model(cell.group, of, module, TiledVAE(module, self._preset), set())
        model, dtype = self._model, getattr(torch, cell.dtype)
        if next(model.module.parameters()).dtype != dtype:
            through = model.tiled if cell.index % 2 else model.module
            nn.Module.to(through, dtype)  # its own ``to`` would warn of modules to keep in float32
            model.seen.clear()
        if cell.fresh:
            model.tiled = TiledVAE(model.module, self._preset)
            model.seen.clear()
        return model

    # -- ours ----------------------------------------------------------------------------------------------------------
    def _ours(self, model: _Model, cell: Cell, x: Tensor, result: Result) -> tuple[list[Tensor], int | None]:
        """What the first and last call gave, on the CPU, and the budget. Tells of memory and time."""
        options, planned = options_of(cell, model.of), []
        asked = Asked(model.module, self._preset, self._meter, cell.side, tuple(x.shape), options)
        tiled, budget = model.tiled, None
        if cell.budget is not None:
            budget = asked.size(cell.budget)
            if budget > self._meter.total():
                result.facts["refused"] = "more than there is"
                return [], budget
            tiled = asked.tiled(budget)
        made = kernels_on_disk()

        def call() -> Any:
            return getattr(tiled, cell.side)(x, **options)

        def first() -> Any:
            if cell.plan_first:
                planned.append(tiled.plan(tuple(x.shape), cell.side, **options))
            return call()

        self._meter.begin()
        try:
            calls = [self._meter.call(first)]
        except PlanError as refusal:
            if planned:
                raise AssertionError(f"planned, and then refused: {refusal}") from refusal
            if "least" in (cell.budget or ""):
                raise AssertionError(f"{budget} bytes were named as enough, and are not: {refusal}") from refusal
            result.facts["refused"] = str(refusal)
            budget = asked.as_named(refusal)
            if budget is None:
                return [], budget
            tiled = asked.tiled(budget)
            self._meter.begin()
            calls = [self._meter.call(call)]
        result.facts["built"] = kernels_on_disk() - made
        values = [_taken(calls, 0)]
        for _ in range(1, cell.calls):
            calls.append(self._meter.call(call))
            last = _taken(calls, -1)
        values += [last] if cell.calls > 1 else []
        plan = planned[0] if planned else tiled.plan(tuple(x.shape), cell.side, **options)
        self._memory(model, cell, x, calls, plan, budget, result)
        self._time(calls, budget, result)
        return values, budget

    # -- what is asked of it -------------------------------------------------------------------------------------------
    def _memory(
        self, model: _Model, cell: Cell, x: Tensor, calls: list[Call], plan: Any, budget: int | None, result: Result
    ) -> None:
        limits, facts, said = self._limits, result.facts, int(plan.peak_bytes)
        weights = sum(t.nbytes for t in model.module.parameters())
        # in another layout, and what is computed of them
        laid_out = 2 * int(getattr(plan, "weight_bytes", weights)) + (8 << 20)
        kept = self._meter.kept()
        if kept > laid_out:
            gc.collect()
            kept = self._meter.kept()
        copied = x.nbytes if calls[-1].pools else 0  # a recording's own copy of the input
        if kept > laid_out + copied + limits.room:
            result.fell.append(f"{kept >> 20} MiB stay behind, of weights of {weights >> 20}")
        # there before: the input, which counts, and perhaps copies of weights in another type, which have gone since
        beside = x.nbytes - min(kept, laid_out)
        first = calls[0].tensors + beside
        # copies that went during the first call may have gone before its peak, or after
        most = max(calls[0].tensors + min(beside, x.nbytes), *(c.tensors + beside for c in calls[1:]), 0)
        held = max(c.held for c in calls)
        key = (cell.side, tuple(x.shape), x.dtype)
        again = budget is None and key in model.seen
        if budget is None:
            model.seen.add(key)
        facts |= {"said": said, "peak": most, "first_peak": first, "kept": kept, "held": held, "again": again}
        facts |= {"ratio": most / said if said else None}
        facts |= {key: [getattr(c, key) for c in calls] for key in ("outside", "reserved", "pools")}
        facts |= {"peaks": [c.tensors + beside for c in calls], "helds": [c.held for c in calls]}
        if budget is not None:
            facts["named"] = budget
            held = max((c.held for c in calls if c.begun <= budget), default=0)
            if held > budget:
                result.fell.append(f"held {held >> 20} MiB of {budget >> 20}")
        if most < self._meter.least and said < self._meter.least:
            return
        if most > limits.peak * said + limits.room:
            result.fell.append(f"a peak of {most >> 20} MiB, {said >> 20} were said")
        if not again and first >= self._meter.least and said > limits.plan * first + limits.room:
            result.fell.append(f"{said >> 20} MiB said for a peak of {first >> 20}")

    def _time(self, calls: list[Call], budget: int | None, result: Result) -> None:
        facts, own = result.facts, result.facts["own_first"]
        facts["first"] = calls[0].seconds
        if len(calls) > 1:
            facts["warm"] = calls[-1].seconds
        if isinstance(own, float) and not facts.get("built"):
            most = self._limits.times * own + self._limits.seconds
            if calls[0].seconds > most:
                result.fell.append(f"a first call of {calls[0].seconds:.1f} s, {most:.1f} at most")
            most = self._limits.warm * own + self._limits.seconds / 50
            if budget is None and len(calls) > 1 and calls[-1].seconds > most:
                result.fell.append(f"a later call of {calls[-1].seconds:.2f} s, {most:.2f} at most")

    def _judge(
        self,
        model: _Model,
        cell: Cell,
        x: Tensor,
        values: list[Tensor],
        own: Tensor | None,
        exact: Tensor | None,
        result: Result,
    ) -> None:
        """Numbers of the first and of the last call."""
        facts, kind = result.facts, (cell.family, cell.side, cell.dtype)
        if exact is None:
            exact = self._by_another_plan(model, cell, x)
            facts["exact"] = "another plan in float32"
        exact = exact.to(self._device)
        if own is not None and not own.isfinite().all():
            facts["exact"] = "the untiled model overflows"
            return
        errors = [errors_of(value.to(self._device), exact) for value in values]
        error = facts["error"] = max(each.relative for each in errors)
        if cell.dtype == "float32":
            most = self._limits.exact * (1 if facts["exact"] == "float64" else 2)  # two of ours are as far apart
            if own is not None:  # random weights of some models add to every rounding: theirs may be further off
                facts["own"] = errors_of(own.to(self._device), exact).relative
            if not error <= most and facts.get("own", 0.0) > most:
                facts |= {"of_own": error / facts["own"], "allowed": _ALIKE}
                if not facts["of_own"] <= _ALIKE:
                    result.fell.append(f"{facts['of_own']:.3f} {_OWN} of {facts['own']:.1e}, {_ALIKE} at most")
            elif not error <= most:
                result.fell.append(f"an error of {error:.1e}, {most:.0e} at most")
        elif own is None:
            most = 1.5 * self._own.get(kind, 0.07)
            if not error <= most:
                result.fell.append(f"an error of {error:.1e} from float32 by another plan, {most:.1e} at most")
        else:
            theirs, latents = errors_of(own.to(self._device), exact), math.prod(latents_of(cell, model.of))
            found = [compared(each, theirs, latents) for each in errors]
            self._own[kind] = max(self._own.get(kind, 0.0), found[0].own)
            worse = max(found, key=lambda c: c.ratio)
            facts |= {"own": worse.own, "of_own": worse.ratio, "allowed": worse.allowed}
            facts["worst_block"] = max(c.worst for c in found)
            for each in found:
                if not each.fine:
                    result.fell.append(
                        f"{each.ratio:.3f} {_OWN} of {each.own:.1e}, {each.allowed:.3f} at "
                        f"most; {each.worst:.1f} times of some block, row or frame"
                    )
                    break

    def _by_another_plan(self, model: _Model, cell: Cell, x: Tensor) -> Tensor:
        """Ours in float32, with strips of another height."""
        wide = model.module if x.dtype == torch.float32 else nn.Module.to(copy.deepcopy(model.module), torch.float32)
        rows = latents_of(cell, model.of)[-2]
        tiled = TiledVAE(wide, self._preset, strip=max(1, rows // 3))
        return tensor_of(getattr(tiled, cell.side)(x.float(), **options_of(cell, model.of))).cpu()


def _taken(calls: list[Call], which: int) -> Tensor:
    """A call's result on the CPU; the device lets go of it."""
    call = calls[which]
    value = tensor_of(call.result).cpu()
    calls[which] = replace(call, result=None)
    return value
