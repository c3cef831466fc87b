"""One side (encode or decode) of one VAE, ready to run at any size: captured graphs, programs and schedules.

A graph is captured when none in memory or on disk serves the input; a program and a schedule are kept for the last few
shapes. Weights are given at every call, so a model that moved or changed its weights needs nothing done. What strips of
a clip divide, its height or its time, is a matter of the plan: each has a graph of its own.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from tvae.kernels import Kernels
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.height_bands import HeightBands
from tvae.pipeline.engine.plan.report import Plan
from tvae.pipeline.engine.plan.ways import Prior
from tvae.pipeline.engine.run.storage import RowSource
from tvae.pipeline.errors import PlanError, TvaeError, UnsupportedOp
from tvae.pipeline.memory.limits import Limits, Rows
from tvae.pipeline.models.calls import Call, Frames, Side, Step
from tvae.pipeline.session.captures import Captured, Captures, Fits, Written
from tvae.pipeline.session.choose_plan import ChosenPlan, at_callers, bytes_there, choose_plan, described
from tvae.pipeline.session.first_runs import takes_definitions
from tvae.pipeline.session.peers import Peers
from tvae.pipeline.session.ready import Ready
from tvae.pipeline.session.recall import recall
from tvae.pipeline.session.runner import Runner
from tvae.pipeline.session.shared_plans import SharedPlans
from tvae.pipeline.session.shared_run import SharedRun
from tvae.pipeline.session.warmup import rehearse
from tvae.pipeline.session.weights import PreparedWeights

__all__ = ["NO_SINKS", "Compiled"]

NO_SINKS: Mapping[int, Any] = {}
_Way = tuple[Captured, ChosenPlan, dict[str, Tensor] | None]
"""The graph, the plan, and its weights where they have been asked for."""


class Compiled:
    """See the module's docstring.

    module: gives the model to capture from, on the device and in the type of the computation, or its skeleton; called
    only when no graph serves. key: identity of the model, for the graphs on disk; None keeps graphs in memory only.
    step: a chunk of a clip with its caches in the place of the whole call. frames: where those of a clip are, None for
    a side whose strips divide the height only. fits: of graphs from disk, those that can be this model's. kernels: None
    for the definitions. channels_last: memory layout of maps. peers: ranks that compute together.
    """

    def __init__(
        self,
        side: Side,
        module: Callable[[], nn.Module],
        key: str | None,
        kernels: Kernels | None = None,
        *,
        allow_whole: bool = False,
        step: Step | None = None,
        frames: Frames | None = None,
        fits: Fits | None = None,
        still: Callable[[], bool] = lambda: True,
        channels_last: bool = False,
        written: Written | None = None,
        peers: Peers | None = None,
    ) -> None:
        self._side: Side = side
        how: Any = {"steps": step is not None, "channels_last": channels_last}
        self._shared = None if peers is None else SharedPlans(peers, side, **how)
        self._frames, self._step, self._allow_whole = frames, step is not None, allow_whole
        self._kernels, self._channels_last = kernels or Kernels(), channels_last
        self.captures = Captures(side, module, key, self._kernels, step, frames, fits, still, written)
        self._planning = threading.RLock()
        self._programs: OrderedDict[Any, Program] = OrderedDict()
        self._latest: dict[Any, Program] = {}
        self._plans: OrderedDict[Any, ChosenPlan] = OrderedDict()
        self._priors: dict[Any, Prior] = {}

    @property
    def torn(self) -> bool:
        """Did the model change while it was captured? What is known here is then of no model."""
        return self.captures.torn

    def ready(
        self,
        inputs: Sequence[Tensor | RowSource],
        weights: PreparedWeights,
        limits: Limits,
        call: Call,
        *,
        sinks: Mapping[int, int] = NO_SINKS,
        record: bool = False,
    ) -> Ready:
        """What runs for inputs of these shapes, with these weights.

        sinks: of the results that go by rows, by their number, the dimension of those rows. record: replay CUDA graphs
        for repeated shapes. Raises UnsupportedOp, PlanError.
        """
        way = self._prepare(inputs, limits, call, sinks, weights)
        return Ready(self._runner(inputs, weights, limits, way, record=record), way[1], way[0].spec)

    def agreed(
        self, inputs: Sequence[Tensor | RowSource], limits: Limits, call: Call, weights: PreparedWeights | None
    ) -> tuple[ChosenPlan, SharedRun]:
        """The plan by which ranks run what this one does not. weights: to agree on one; None raises LookupError where
        they have not."""
        assert self._shared is not None
        with nullcontext() if weights is not None else self._shared.only_kept():
            found = self._prepare(inputs, limits, call, NO_SINKS, weights)[1]
        return found, self._shared.run(found.schedule.program)

    def _runner(
        self,
        inputs: Sequence[Tensor | RowSource],
        weights: PreparedWeights,
        limits: Limits,
        way: _Way,
        *,
        record: bool,
    ) -> Runner:
        """For the weights as they are now."""
        captured, found, given = way
        plan = found.schedule
        given = weights(_names(captured, plan.program)) if given is None else given
        given |= {k: t.to(inputs[0].device) for k, t in captured.graph.constants.items()}
        if not captured.rehearsed:
            captured.rehearsed = True
            rehearse(captured.graph, plan, given, self._kernels, channels_last=self._channels_last)
        last, bounded, spill = self._channels_last, limits.vram is not None, limits.spill
        shared = None if self._shared is None else self._shared.run(plan.program)
        how: dict[str, Any] = {"channels_last": last, "record": record, "bounded": bounded}
        how["plainly"] = partial(takes_definitions, found, limits, inputs[0].device)
        return Runner(plan, given, weights.made, planned=lambda: found.bytes, spill=spill, shared=shared, **how)

    def plan(
        self,
        inputs: Sequence[Tensor | RowSource],
        limits: Limits,
        call: Call,
        *,
        sinks: Mapping[int, int] = NO_SINKS,
        weights: PreparedWeights | None = None,
    ) -> Plan:
        """What ``run`` would do. Only shapes, type and device of the inputs matter. weights: where they are there."""
        found = self._prepare(inputs, limits, call, sinks, weights)[1]
        return described(found, limits, inputs[0].device, self._side)

    def expect(self, inputs: Sequence[Tensor | RowSource], limits: Limits, call: Call) -> None:
        """Plan for inputs of these shapes, in any thread; nothing where a graph would have to be captured first. What
        refuses them says so when they come."""
        with suppress(TvaeError), self._planning:
            if self.captures.there(inputs, call):
                self._prepare(inputs, limits, call, NO_SINKS)

    def capture(self, inputs: Sequence[Tensor | RowSource], call: Call) -> None:
        """Find or make the graph that serves inputs of these shapes. Raises UnsupportedOp."""
        self.captures.of(inputs, [tuple(t.shape) for t in inputs], call, "height")

    def check(
        self,
        inputs: Sequence[Tensor | RowSource],
        limits: Limits,
        call: Call,
        *,
        sinks: Mapping[int, int] = NO_SINKS,
        weights: PreparedWeights | None = None,
    ) -> None:
        """Raises PlanError where no plan for inputs of these shapes keeps the limits. weights: as of a run."""
        self._prepare(inputs, limits, call, sinks, weights)

    def shapes(self, inputs: Sequence[Tensor | RowSource], call: Call) -> list[tuple[int, ...]]:
        """Of everything that a run gives: the result first, then the caches of a step."""
        with self._planning:
            program = self._lowered("height", inputs, call)[1]
        return [program.ops[i].shape for i in program.outputs]

    def _prepare(
        self,
        inputs: Sequence[Tensor | RowSource],
        limits: Limits,
        call: Call,
        sinks: Mapping[int, int],
        weights: PreparedWeights | None = None,
    ) -> _Way:
        """The graph and the schedule, with strips of the height or of the time. weights: for a run, not only a plan:
        they take their place before the rest is shared out."""
        found: list[_Way] = []
        refused: list[TvaeError] = []
        try:
            for rows in self._choices(inputs, limits, call, sinks):
                try:
                    with self._planning:
                        way = self._divided(rows, inputs, limits, call, sinks, weights)
                except (PlanError, UnsupportedOp) as error:  # of strips of time alone, or of the height
                    refused.append(error)
                    continue
                if way[1].divides or rows == "height":
                    found.append(way)
                    if way[1].at_ease:
                        break
            if not found:
                raise min(refused, key=lambda error: getattr(error, "enough", None) or math.inf)
        finally:  # an error holds this frame and those of all callers, with weights and results
            refused.clear()
        return found[0] if len(found) == 1 else min(found, key=lambda way: way[1].seconds)

    def _choices(
        self, inputs: Sequence[Tensor | RowSource], limits: Limits, call: Call, sinks: Mapping[int, int]
    ) -> list[Rows]:
        """What strips may divide, in the order of trial. Frames that come or go one by one are strips of time."""
        clip = self._frames is not None and self._frames.serves(inputs[0].shape, call)
        if not clip or limits.rows == "height":
            return ["height"]
        if limits.rows == "time" or sinks or not isinstance(inputs[0], Tensor):
            return ["time", "height"]
        if limits.fixed:
            return ["height"]
        return ["time", "height"] if self._frames is not None and self._frames.alone else ["height", "time"]

    def _divided(
        self,
        rows: Rows,
        inputs: Sequence[Tensor | RowSource],
        limits: Limits,
        call: Call,
        sinks: Mapping[int, int],
        weights: PreparedWeights | None,
    ) -> _Way:
        limits = limits.of_frames() if rows == "time" else limits
        captured, program, height_bands = self._lowered(rows, inputs, call)
        if self._shared is not None:
            return captured, self._shared.of(captured.graph, program, inputs, limits, call, weights), None
        places, device = at_callers(program, inputs, sinks), inputs[0].device
        there = bytes_there(program, inputs, places)
        key = (id(captured.graph), *(tuple(t.shape) for t in inputs), device, call.last)
        # what is to come beside it is measured on a GPU alone, see ``ChosenPlan.fits``
        counted = weights is not None and limits.vram is not None, limits.beside if device.type == "cpu" else 0
        wanted = (*key, limits.strip, limits.longest, limits.fixed, limits.vram, *counted, *places)
        given = None if weights is None else weights.in_place(names := _names(captured, program))
        if weights is not None and given is None:
            sizes = {name: program.ops[i].bytes for i, name in program.params.items()}
            more = sum(sizes[name] for name in weights.to_come(names))
            choose_plan(program, limits, device, places, height_bands, to_come=more, there=there)  # or refuses
            given = weights(names)
        if wanted in self._plans and not self._plans[wanted].fits(limits, device):
            del self._plans[wanted]
        cut = (id(captured.graph), rows, device, call.last, limits.strip, limits.longest, limits.fixed, *places)
        # a budget that is named may want every way there is
        prior = self._priors.setdefault(cut, Prior()) if limits.vram is None else None
        how: Any = {"to_come": None if weights is None else 0, "there": there, "prior": prior}
        found: ChosenPlan = recall(
            self._plans, wanted, lambda: choose_plan(program, limits, device, places, height_bands, **how)
        )
        return captured, found, given

    def _lowered(
        self, rows: Rows, inputs: Sequence[Tensor | RowSource], call: Call
    ) -> tuple[Captured, Program, HeightBands | None]:
        """The graph, its program at these shapes, and the height of one whose strips divide time."""
        shapes, device = [tuple(t.shape) for t in inputs], inputs[0].device
        captured, sizes = self.captures.of(inputs, shapes, call, rows)

        def lowered(graph: Graph, at: Mapping[str, int]) -> Program:
            like = self._latest.get((id(graph), device)) if graph is captured.graph else None
            whole, last = self._allow_whole, self._channels_last
            found = lower(graph, at, device, self._kernels, allow_whole=whole, channels_last=last, like=like)
            if graph is captured.graph:
                self._latest[id(graph), device] = found
            return found

        key = (id(captured.graph), tuple(shapes), device, call.last)
        program = recall(self._programs, key, lambda: self._of_step(lowered(captured.graph, sizes), call))
        return captured, program, HeightBands(captured.graph, sizes, program, lowered) if rows == "time" else None

    def _of_step(self, program: Program, call: Call) -> Program:
        """A step's caches are no longer wanted when it is done; those that it would leave are not if it is the last."""
        outputs = program.outputs[:1] if call.last else program.outputs
        return replace(program, outputs=outputs, handed_over=frozenset(program.inputs[1:])) if self._step else program


def _names(captured: Captured, program: Program) -> list[str]:
    """Of the weights that a run wants."""
    return [name for name in program.params.values() if name not in captured.graph.constants]
