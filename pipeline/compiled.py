"""One side (encode or decode) of one VAE, ready to run at any size: captured graphs, programs and schedules.

A graph is captured when none in memory or on disk serves the input; a program and a schedule are kept for the last few
shapes. Weights are given at every call, so a model that moved or changed its weights needs nothing done. What strips of
a clip divide, its height or its time, is a matter of the plan: each has a graph of its own.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tvae.kernels import Kernels, cudnn_sum, why_missing
from tvae.pipeline.budget import Limits, Rows
from tvae.pipeline.collector import without_collector
from tvae.pipeline.engine.across import Across
from tvae.pipeline.engine.boundary import RowSource
from tvae.pipeline.engine.capture import capture
from tvae.pipeline.engine.constants import state_of
from tvae.pipeline.engine.graph import Graph
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import optimise, simplify
from tvae.pipeline.engine.plan import Plan
from tvae.pipeline.engine.program import Program
from tvae.pipeline.errors import PlanError, UnsupportedOp
from tvae.pipeline.graph_store import GraphStore, graph_key
from tvae.pipeline.heap import return_what_is_freed
from tvae.pipeline.models.reference import Side, call_reference, reference_mode
from tvae.pipeline.outputs import Spec, flatten
from tvae.pipeline.planning import Planned, at_callers, described, planned
from tvae.pipeline.rehearse import prepared, rehearse
from tvae.pipeline.runner import Runner
from tvae.pipeline.weights import PreparedWeights

__all__ = ["NO_SINKS", "Call", "Compiled", "Frames", "Ready", "Step"]

_KEPT_SHAPES = 8
NO_SINKS: Mapping[int, Any] = {}

Step = Callable[[nn.Module, Tensor, Sequence[Tensor]], tuple[Tensor, Sequence[Tensor]]]
"""(model, chunk of a clip, caches) -> (its result, the next chunk's caches)."""


@dataclass(frozen=True)
class Call:
    """How the side is called: names of the tensor arguments after the first, and the other arguments by name."""

    tensors: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Frames:
    """Where a clip's frames are in the first input: its dimension, and the option of the call that counts them.

    alone: no norm and no attention needs the whole clip. Strips of time then need no buffer; they are quicker, too (LTX
    decode, 241 frames 1280x704 on an H200: 0.40 s by frames, 1.07 s by height).
    """

    dim: int = 2
    option: str | None = None
    alone: bool = False

    def serves(self, shape: Sequence[int], call: Call) -> bool:
        """Is this the shape of one clip, of several frames?"""
        frames = shape[self.dim]
        counted = frames if self.option is None else dict(call.options).get(self.option, frames)
        return frames > 1 and counted == frames


@dataclass(frozen=True)
class _Captured:
    graph: Graph
    spec: Spec


@dataclass(frozen=True)
class Ready:
    """A run that is prepared, for inputs of one shape. spec: rebuilds the return value from its tensors."""

    runner: Runner
    planned: Planned
    spec: Spec

    def serves(self, limits: Limits, device: torch.device) -> bool:
        """Does it, still? What is recorded has its memory; other runs take theirs anew."""
        return self.runner.recorded or self.planned.fits(limits, device)


class Compiled:
    """See the module's docstring.

    module: gives the model to capture from, on the device and in the type of the computation, or its skeleton; called
    only when no graph serves. step: a chunk of a clip with its caches in the place of the whole call. frames: where
    those of a clip are, None for a side whose strips divide the height only. facts: what identifies the model
    (configuration, weights' names and shapes), for the graphs on disk. digest: that of the model's source, None keeps
    graphs in memory only. kernels: None for the definitions.
    """

    def __init__(
        self,
        side: Side,
        module: Callable[[], nn.Module],
        digest: str | None,
        facts: Mapping[str, Any],
        kernels: Kernels | None = None,
        *,
        allow_whole: bool = False,
        step: Step | None = None,
        frames: Frames | None = None,
    ) -> None:
        self._side: Side = side
        self._step, self._frames = step, frames
        self._kernels = kernels or Kernels()
        self._module, self._digest, self._facts, self._allow_whole = module, digest, dict(facts), allow_whole
        self._graphs: dict[str, list[_Captured]] = {}
        self._new: set[int] = set()  # graphs, by identity, whose kernels nobody has asked for yet
        self._programs: OrderedDict[Any, Program] = OrderedDict()
        self._plans: OrderedDict[Any, Planned] = OrderedDict()
        self._runners: dict[int, tuple[Any, Runner]] = {}  # by the identity of a kept schedule

    def ready(
        self,
        inputs: Sequence[Tensor | RowSource],
        weights: PreparedWeights,
        limits: Limits,
        call: Call,
        *,
        sinks: Mapping[int, int] = NO_SINKS,
        channels_last: bool = False,
        record: bool = False,
    ) -> Ready:
        """What runs for inputs of these shapes, with these weights.

        sinks: of the results that go by rows, by their number, the dimension of those rows. record: replay CUDA graphs
        for repeated shapes. Raises UnsupportedOp, PlanError.
        """
        if limits.vram is not None and inputs[0].device.type == "cpu":
            return_what_is_freed()
        with without_collector():
            captured, found = self._prepare(inputs, limits, call, sinks, weights)
            runner = self._runner(inputs, weights, limits, captured, found, channels_last=channels_last, record=record)
        return Ready(runner, found, captured.spec)

    def _runner(
        self,
        inputs: Sequence[Tensor | RowSource],
        weights: PreparedWeights,
        limits: Limits,
        captured: _Captured,
        found: Planned,
        *,
        channels_last: bool,
        record: bool,
    ) -> Runner:
        """The one of this schedule, for the weights as they are now."""
        plan = found.schedule
        given = dict(weights([n for n in plan.program.params.values() if n not in captured.graph.constants]))
        record = record and limits.vram is None  # a recording's memory is its own, beyond what a named budget plans
        state = (channels_last, record, state_of(list(given.values())))
        if id(plan) not in self._runners or self._runners[id(plan)][0] != state:
            given |= {k: t.to(inputs[0].device) for k, t in captured.graph.constants.items()}
            if id(captured.graph) in self._new:
                self._new.remove(id(captured.graph))
                rehearse(captured.graph, plan.program, given, self._kernels, channels_last=channels_last)
            self._runners[id(plan)] = (
                state,
                Runner(plan, given, channels_last=channels_last, record=record, spill=limits.spill),
            )
            for old in self._runners.keys() - {id(p.schedule) for p in self._plans.values()}:
                del self._runners[old]
        return self._runners[id(plan)][1]

    def forget(self) -> None:
        """Let go of weights and recordings: the model is about to move, or has."""
        self._runners.clear()

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

    def check(self, inputs: Sequence[Tensor | RowSource], limits: Limits, call: Call) -> None:
        """Raises PlanError where no plan for inputs of these shapes keeps the limits."""
        self._prepare(inputs, limits, call, {})

    def shapes(self, inputs: Sequence[Tensor | RowSource], call: Call) -> list[tuple[int, ...]]:
        """Of everything that a run gives: the result first, then the caches of a step."""
        program = self._lowered("height", inputs, call)[1]
        return [program.ops[i].shape for i in program.outputs]

    def _prepare(
        self,
        inputs: Sequence[Tensor | RowSource],
        limits: Limits,
        call: Call,
        sinks: Mapping[int, int],
        weights: PreparedWeights | None = None,
    ) -> tuple[_Captured, Planned]:
        """The graph and the schedule, with strips of the height or of the time. weights: for a run, not only a plan:
        they take their place before the rest is shared out."""
        found: list[tuple[_Captured, Planned]] = []
        refused: list[PlanError] = []
        for rows in self._choices(inputs, limits, call, sinks):
            try:
                with without_collector():
                    way = self._divided(rows, inputs, limits, call, sinks, weights)
            except PlanError as error:
                refused.append(error)
                continue
            if way[1].divides or rows == "height":
                found.append(way)
                if way[1].at_ease:
                    break
        if not found:
            try:
                raise min(refused, key=lambda error: error.enough or math.inf)
            finally:
                refused.clear()  # or this frame and the error would hold each other, and the weights
        return min(found, key=lambda way: way[1].seconds)

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
    ) -> tuple[_Captured, Planned]:
        limits = limits.of_frames() if rows == "time" else limits
        captured, program, across = self._lowered(rows, inputs, call)
        places, device = at_callers(program, inputs, sinks), inputs[0].device
        key = (id(captured.graph), *(tuple(t.shape) for t in inputs), device)
        wanted = (*key, limits.strip, limits.longest, limits.fixed, limits.vram, weights is not None, *places)
        if weights is not None:
            params = {n: i for i, n in program.params.items() if n not in captured.graph.constants}
            if not _have_place(weights, [*params]):
                more = sum(program.ops[params[n]].bytes for n in weights.to_come([*params]))
                planned(program, limits, device, places, across, to_come=more)  # refuses, and says what would do
                weights([*params])
        if wanted in self._plans and not self._plans[wanted].fits(limits, device):
            del self._plans[wanted]
        to_come = None if weights is None else 0
        found: Planned = _recall(
            self._plans, wanted, lambda: planned(program, limits, device, places, across, to_come=to_come)
        )
        return captured, found

    def _lowered(
        self, rows: Rows, inputs: Sequence[Tensor | RowSource], call: Call
    ) -> tuple[_Captured, Program, Across | None]:
        """The graph, its program at these shapes, and the height of one whose strips divide time."""
        shapes, device = [tuple(t.shape) for t in inputs], inputs[0].device
        captured, sizes = self._captured(inputs, shapes, call, rows)

        def lowered(graph: Graph, at: Mapping[str, int]) -> Program:
            return lower(graph, at, device, self._kernels, allow_whole=self._allow_whole)

        key = (id(captured.graph), tuple(shapes), device)
        program = _recall(self._programs, key, lambda: lowered(captured.graph, sizes))
        return captured, program, Across(captured.graph, sizes, program, lowered) if rows == "time" else None

    def _captured(
        self, inputs: Sequence[Tensor | RowSource], shapes: list[tuple[int, ...]], call: Call, rows: Rows
    ) -> tuple[_Captured, dict[str, int]]:
        facts = self._call_facts(inputs, call, rows)
        name = json.dumps(facts, sort_keys=True, default=str)
        store = GraphStore(graph_key(self._digest, {**self._facts, **facts}))
        if name not in self._graphs:
            self._graphs[name] = [_Captured(self._optimised(g, inputs), s) for g, s in store.load()]
        for known in self._graphs[name]:
            sizes = known.graph.bind(shapes)
            if sizes is not None:
                return known, sizes
        with prepared(self._kernels, inputs[0].dtype, inputs[0].device):
            plain = self._capture(inputs, call, rows)
        store.save(plain.graph, plain.spec)
        new = _Captured(self._optimised(plain.graph, inputs), plain.spec)
        self._graphs[name].append(new)
        self._new.add(id(new.graph))
        sizes = new.graph.bind(shapes)
        if sizes is None:
            why = f"the capture does not serve its own shape {shapes}"
            raise UnsupportedOp("torch.export", self._side, why, whole=False)
        return new, sizes

    def _optimised(self, graph: Graph, inputs: Sequence[Tensor | RowSource]) -> Graph:
        """The graph with every pass that pays on this device, at these levels, in this type."""
        fused = {op: level != "native" for op, level in self._kernels.levels.items()}
        wide = inputs[0].dtype in (torch.float32, torch.float64)
        bias = inputs[0].device.type != "cpu" and fused["add_stats"]
        narrow = inputs[0].device.type != "cpu" and not wide and fused["conv_from_few"] and fused["conv_to_few"]
        own = self._kernels.levels["conv_add"] == "cuda" and not (why_missing("cuda") or cudnn_sum.missing())
        epilogue = inputs[0].device.type == "cuda" and not wide and own
        return optimise(graph, subpixel=wide or fused["norm_act"], bias=bias, narrow=narrow, epilogue=epilogue)

    def _call_facts(self, inputs: Sequence[Tensor | RowSource], call: Call, rows: Rows) -> dict[str, Any]:
        """What a capture bakes in besides the model: fixed dimensions, types, options."""
        fixed = [
            [n if d < len(t.shape) - 2 or len(t.shape) < 4 or n == 1 else 0 for d, n in enumerate(t.shape)]
            for t in inputs
        ]
        counting = None
        if rows == "time" and self._frames is not None:
            fixed[0][self._frames.dim], counting = 0, self._frames.option
        dtypes = [str(t.dtype) for t in inputs]
        device = inputs[0].device.type
        return {
            "side": self._side if self._step is None else f"{self._side} step",
            "fixed": fixed,
            "dtypes": dtypes,
            "device": device,
            "tensors": list(call.tensors),
            "options": [[k, repr(v)] for k, v in call.options if k != counting],
            "rows": rows,
        }

    def _capture(self, inputs: Sequence[Tensor | RowSource], call: Call, rows: Rows) -> _Captured:
        module, side, step = self._module(), self._side, self._step
        device = next(iter(module.parameters())).device
        spec: Spec = {}
        frames = self._frames if rows == "time" else None

        def traced(x: Tensor, *more: Tensor) -> list[Tensor]:
            if step is not None:
                result, caches = step(module, x, more)
                return [result, *caches]
            kwargs = dict(call.options) | dict(zip(call.tensors, more, strict=True))
            if frames is not None and frames.option in kwargs:
                kwargs[frames.option] = x.shape[frames.dim]
            tensors, found = flatten(call_reference(module, side, x, **kwargs))
            spec.update(found)
            return tensors

        examples = [
            t if isinstance(t, Tensor) and t.device == device else torch.empty(t.shape, dtype=t.dtype, device=device)
            for t in inputs
        ]
        with reference_mode(module):
            graph = simplify(capture(module, traced, examples, -2 if frames is None else frames.dim))
        return _Captured(graph, spec)


def _have_place(weights: PreparedWeights, names: Sequence[str]) -> bool:
    try:
        weights(names)
    except torch.OutOfMemoryError:
        return False
    return True


def _recall(cache: OrderedDict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
    if key in cache:
        cache.move_to_end(key)
        return cache[key]
    cache[key] = made = make()
    if len(cache) > _KEPT_SHAPES:
        cache.popitem(last=False)
    return made
