"""The plans of one side that ranks share: found together, once for each shape, when all are known to be alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.run.storage import RowSource
from tvae.pipeline.errors import PlanError
from tvae.pipeline.memory.limits import Limits
from tvae.pipeline.models.calls import Call
from tvae.pipeline.session.choose_plan import ChosenPlan, choose_plan
from tvae.pipeline.session.identity.sources import own_digest, versions
from tvae.pipeline.session.peers import Peers
from tvae.pipeline.session.shared_run import SharedRun, shared_plan
from tvae.pipeline.session.strip_heights import unit_of_bands
from tvae.pipeline.session.weights import PreparedWeights

__all__ = ["SharedPlans"]


class SharedPlans:
    """See the module's docstring. A plan is kept for as long as the side is, so that no rank asks the others when they
    do not ask it. steps: the side is a step of a clip. channels_last: the layout of maps."""

    def __init__(self, peers: Peers, side: str, *, steps: bool, channels_last: bool) -> None:
        self._peers, self._side, self._steps, self._channels_last = peers, side, steps, channels_last
        self._plans: dict[Any, ChosenPlan] = {}
        self._refused: dict[Any, Callable[[], PlanError]] = {}
        self._weights_alike = self._only_kept = False

    @contextmanager
    def only_kept(self) -> Iterator[None]:
        """Ask no other rank, and raise LookupError instead."""
        self._only_kept = True
        try:
            yield
        finally:
            self._only_kept = False

    def of(
        self,
        graph: Graph,
        program: Program,
        inputs: Sequence[Tensor | RowSource],
        limits: Limits,
        call: Call,
        weights: PreparedWeights | None,
    ) -> ChosenPlan:
        """As this rank runs it. weights: for a run. Raises UsageError where ranks are not alike, PlanError."""
        device, shapes = inputs[0].device, [tuple(x.shape) for x in inputs]
        key = (id(graph), *shapes, device, call.last, limits)
        if key not in self._plans:
            if self._only_kept:
                raise self._refused.get(key, LookupError)()
            self._check(graph, shapes, limits, call, on_cpu=device.type == "cpu")
            if weights is not None:
                self._check_weights(program, graph, weights)
            whole = sum(program.ops[i].bytes for i in program.outputs) if self._peers.gather and not self._steps else 0
            beside = replace(limits, beside=limits.beside + whole)

            def choose(shared: Program) -> ChosenPlan:
                there = sum(shared.ops[i].bytes for i in shared.inputs) * shared.own_rows // max(1, shared.rows)
                to_come = None if weights is None else 0
                least = self._peers.least
                return choose_plan(shared, beside, device, {}, to_come=to_come, there=there, agreed=least)

            unit = unit_of_bands(program, limits)
            try:
                self._plans[key] = shared_plan(program, self._peers, choose, unit=unit, steps=self._steps)
            except PlanError as error:
                self._refused[key] = partial(PlanError, str(error), error.enough)
                raise
        return self._plans[key]

    def run(self, program: Program) -> SharedRun:
        """How a program of these plans is run."""
        return SharedRun(program, self._peers, self._steps, self._channels_last)

    def _check(
        self, graph: Graph, shapes: Sequence[tuple[int, ...]], limits: Limits, call: Call, *, on_cpu: bool
    ) -> None:
        text = json.dumps(graph.to_json(), sort_keys=True, default=str)
        self._peers.check_alike([
            ("version of tvae", own_digest()),
            ("version of PyTorch", versions()["torch"]),
            ("call", (self._side, call)),
            ("input size", shapes),
            ("setting (strip, vram or rows)", replace(limits, spill=None)),
            ("VAE", text),
            ("layout in memory (preset)", self._channels_last),
            ("wish for results (gather)", self._peers.gather),
        ])  # fmt: skip

    def _check_weights(self, program: Program, graph: Graph, weights: PreparedWeights) -> None:
        """Once: reading all of them takes as long as a small picture."""
        if not self._weights_alike:
            weights([n for n in program.params.values() if n not in graph.constants])
            self._peers.check_alike([("set of weights", sorted(weights.sums().items()))])
            self._weights_alike = True
