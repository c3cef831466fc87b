"""One side (encode or decode) of one VAE, ready to run at any size: captured graphs, programs and schedules.

A graph is captured when none in memory or on disk serves the input; a program and a schedule are kept for the last few
shapes. Weights are given at every call, so a model that moved or changed its weights needs nothing done.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tvae.pipeline.engine.capture import capture
from tvae.pipeline.engine.execute import execute
from tvae.pipeline.engine.graph import Graph
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import simplify
from tvae.pipeline.engine.plan import Plan, explain
from tvae.pipeline.engine.program import Program
from tvae.pipeline.engine.schedule import Schedule, schedule
from tvae.pipeline.errors import UnsupportedOp
from tvae.pipeline.graph_store import GraphStore, graph_key
from tvae.pipeline.models.reference import Side, call_reference, reference_mode
from tvae.pipeline.outputs import Spec, flatten

__all__ = ["Call", "Compiled"]

_KEPT_SHAPES = 8

Weights = Callable[[Sequence[str]], Mapping[str, Tensor]]
"""Gives weights by name, on the device and in the type of the computation."""


@dataclass(frozen=True)
class Call:
    """How the side is called: names of the tensor arguments after the first, and the other arguments by name."""

    tensors: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class _Captured:
    graph: Graph
    spec: Spec


class Compiled:
    """See the module's docstring.

    module: gives the model to capture from, on the device and in the type of the computation, or its skeleton; called
    only when no graph serves. facts: what identifies the model (configuration, weights' names and shapes), for the
    graphs on disk. digest: that of the model's source, None keeps graphs in memory only.
    """

    def __init__(
        self,
        side: Side,
        module: Callable[[], nn.Module],
        digest: str | None,
        facts: Mapping[str, Any],
        *,
        allow_whole: bool = False,
    ) -> None:
        self._side: Side = side
        self._module, self._digest, self._facts, self._allow_whole = module, digest, dict(facts), allow_whole
        self._graphs: dict[str, list[_Captured]] = {}
        self._programs: OrderedDict[Any, Program] = OrderedDict()
        self._schedules: OrderedDict[Any, Schedule] = OrderedDict()

    def run(
        self,
        inputs: Sequence[Tensor],
        weights: Weights,
        strip: int,
        call: Call,
        *,
        generator: torch.Generator | None = None,
        channels_last: bool = False,
    ) -> tuple[list[Tensor], Spec]:
        """The side's tensors for these inputs, and the Spec to rebuild its return value.

        strip: height of a strip in latent rows. Raises UnsupportedOp, PlanError.
        """
        captured, plan = self._prepare(inputs, strip, call)
        given = dict(weights([n for n in plan.program.params.values() if n not in captured.graph.constants]))
        given |= {k: t.to(inputs[0].device) for k, t in captured.graph.constants.items()}
        return execute(plan, inputs, given, generator, channels_last=channels_last), captured.spec

    def plan(self, inputs: Sequence[Tensor], strip: int, call: Call) -> Plan:
        """What ``run`` would do. Only shapes, type and device of the inputs matter."""
        return explain(self._prepare(inputs, strip, call)[1], self._side)

    def _prepare(self, inputs: Sequence[Tensor], strip: int, call: Call) -> tuple[_Captured, Schedule]:
        shapes = [tuple(t.shape) for t in inputs]
        captured, sizes = self._captured(inputs, shapes, call)
        key = (id(captured.graph), tuple(shapes), inputs[0].device)
        program = _recall(
            self._programs,
            key,
            lambda: lower(captured.graph, sizes, inputs[0].device, allow_whole=self._allow_whole),
        )
        return captured, _recall(
            self._schedules, (*key, strip), lambda: schedule(program, strip_in_input_rows(program, strip))
        )

    def _captured(
        self, inputs: Sequence[Tensor], shapes: list[tuple[int, ...]], call: Call
    ) -> tuple[_Captured, dict[str, int]]:
        facts = self._call_facts(inputs, call)
        name = json.dumps(facts, sort_keys=True, default=str)
        store = GraphStore(graph_key(self._digest, {**self._facts, **facts}))
        if name not in self._graphs:
            self._graphs[name] = [_Captured(g, s) for g, s in store.load()]
        for known in self._graphs[name]:
            sizes = known.graph.bind(shapes)
            if sizes is not None:
                return known, sizes
        new = self._capture(inputs, call)
        store.save(new.graph, new.spec)
        self._graphs[name].append(new)
        sizes = new.graph.bind(shapes)
        if sizes is None:
            why = f"the capture does not serve its own shape {shapes}"
            raise UnsupportedOp("torch.export", self._side, why, whole=False)
        return new, sizes

    def _call_facts(self, inputs: Sequence[Tensor], call: Call) -> dict[str, Any]:
        """What a capture bakes in besides the model: fixed dimensions, types, options."""
        fixed = [[n if d < t.ndim - 2 or t.ndim < 4 or n == 1 else 0 for d, n in enumerate(t.shape)] for t in inputs]
        dtypes = [str(t.dtype) for t in inputs]
        device = inputs[0].device.type
        return {
            "side": self._side,
            "fixed": fixed,
            "dtypes": dtypes,
            "device": device,
            "tensors": list(call.tensors),
            "options": [[k, repr(v)] for k, v in call.options],
        }

    def _capture(self, inputs: Sequence[Tensor], call: Call) -> _Captured:
        module = self._module()
        device = next(iter(module.parameters())).device
        spec: Spec = {}

        def traced(x: Tensor, *more: Tensor) -> list[Tensor]:
            kwargs = dict(call.options) | dict(zip(call.tensors, more, strict=True))
            tensors, found = flatten(call_reference(module, self._side, x, **kwargs))
            spec.update(found)
            return tensors

        examples = [t if t.device == device else torch.empty_like(t, device=device) for t in inputs]
        with reference_mode(module):
            graph = simplify(capture(module, traced, examples))
        return _Captured(graph, spec)


def strip_in_input_rows(program: Program, strip: int) -> int:
    """Rows of the input that ``strip`` latent rows are; the latent is the lower of input and output."""
    out = program.ops[program.outputs[0]].axis
    rows_out = out.rows if out else program.rows
    latent = max(1, min(rows_out, program.rows))
    return -(-strip * program.rows // latent)


def _recall(cache: OrderedDict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
    if key in cache:
        cache.move_to_end(key)
        return cache[key]
    cache[key] = made = make()
    if len(cache) > _KEPT_SHAPES:
        cache.popitem(last=False)
    return made
