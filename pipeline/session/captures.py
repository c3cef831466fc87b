"""The captured graphs of one side of one VAE: those in memory, those on disk, and new ones.

A graph serves every input that its guards admit; what a capture bakes in besides the model (types, options, how many
frames) is part of its name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from tvae.kernels import Kernels, why_missing
from tvae.kernels.new_objects import look_through_all
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.passes import optimise
from tvae.pipeline.engine.run.storage import RowSource
from tvae.pipeline.errors import UnsupportedOp, UsageError
from tvae.pipeline.memory.limits import Rows
from tvae.pipeline.models.calls import Call, Frames, Side, Step
from tvae.pipeline.session.graph_cache import GraphStore, graph_key
from tvae.pipeline.session.outputs import Spec
from tvae.pipeline.session.refusals import Refusals
from tvae.pipeline.session.warmup import prepared
from tvae.pipeline.settings.modes import of_the_process

__all__ = ["Captured", "Captures", "Fits", "Written"]

Fits = Callable[[Graph, Spec], bool]
"""Can a graph from disk, with what its outputs make, be this model's?"""
Written = Callable[[Side, int, torch.dtype], tuple[Graph, Spec] | None]
"""The graph of a side, for a batch of so many of this type, where it is known without a capture."""


@dataclass
class Captured:
    """spec: rebuilds the return value from the graph's outputs. rehearsed: its kernels have been asked for; those of a
    graph that was found on disk are taken to be there, too."""

    graph: Graph
    spec: Spec
    rehearsed: bool = True
    _others: dict[int, Captured] = field(default_factory=dict)

    def divided(self, dim: int) -> Captured:
        """The same, with strips along this dimension of the first input."""
        symbol = self.graph.symbol_of(dim)
        if symbol == self.graph.row_symbol:
            return self
        if dim not in self._others:
            self._others[dim] = replace(self, graph=replace(self.graph, row_symbol=symbol), _others={})
        return self._others[dim]


class Captures:
    """See the module's docstring; the arguments are those of ``Compiled``."""

    def __init__(
        self,
        side: Side,
        module: Callable[[], nn.Module],
        key: str | None,
        kernels: Kernels,
        step: Step | None,
        frames: Frames | None,
        fits: Fits | None = None,
        still: Callable[[], bool] = lambda: True,
        written: Written | None = None,
    ) -> None:
        self._side: Side = side
        self._module, self._key, self._still = module, key, still
        self._kernels, self._step, self._frames = kernels, step, frames
        self._fits, self._written = fits or (lambda _graph, _spec: True), written
        self._graphs: dict[str, list[Captured]] = {}
        self._refused = Refusals()
        self.numbers: Callable[[], Mapping[str, Tensor]] = dict
        """Weights whose values the model may read while it is captured, by name: those that its key covers."""
        self._lock = threading.RLock()
        self.torn = False
        """Did the model change while it was captured? Such a graph belongs to no state of the model and is not kept."""

    def of(
        self, inputs: Sequence[Tensor | RowSource], shapes: list[tuple[int, ...]], call: Call, rows: Rows
    ) -> tuple[Captured, dict[str, int]]:
        """A graph that serves these inputs, and its symbols' values. Raises UnsupportedOp, UsageError."""
        with self._lock:
            frames, facts, name = self._named(inputs, call)
            found = self._serving(name, shapes, rows)
            if found is not None:
                return found
            self._refused.check(wanted := (name, *shapes))
            try:
                found = self._of(inputs, shapes, call, rows, (frames, facts, name))
                look_through_all()
                return found
            except (UnsupportedOp, UsageError) as error:
                if self._still():  # else it is of no state of the model
                    self._refused.keep(wanted, error)
                raise

    def _of(
        self,
        inputs: Sequence[Tensor | RowSource],
        shapes: list[tuple[int, ...]],
        call: Call,
        rows: Rows,
        named: tuple[Frames | None, dict[str, Any], str],
    ) -> tuple[Captured, dict[str, int]]:
        frames, facts, name = named
        store = GraphStore(None if self._key is None else graph_key(self._key, facts))
        dims = 3 if len(inputs[0].shape) == 5 else 2
        with prepared(self._kernels, inputs[0].dtype, inputs[0].device, dims):
            if name not in self._graphs:
                self._graphs[name] = self._without_capture(store, inputs, call)
                found = self._serving(name, shapes, rows)
                if found is not None:
                    return found
            plain, spec, touched = self._capture(inputs, call, frames)
            if touched:  # by the model itself, or by another thread: then no second capture is like it
                self.torn = self._capture(inputs, call, frames)[0].to_json() != plain.to_json()
        self.torn |= not self._still()
        if not self.torn and plain.fixed is None:  # a later process tries again
            store.save(plain, spec)
        self._graphs[name].append(Captured(self._optimised(plain, inputs), spec, rehearsed=False))
        found = self._serving(name, shapes, rows)
        if found is None:
            why = f"the graph that torch.export made of it does not serve the shapes it was made with, {shapes}"
            raise UnsupportedOp("torch.export", self._side, why, whole=False)
        return found

    def _without_capture(self, store: GraphStore, inputs: Sequence[Tensor | RowSource], call: Call) -> list[Captured]:
        """The graphs there are of these inputs."""
        first, plain = inputs[0], len(inputs) == 1 and call == Call() and self._step is None and self._frames is None
        known = self._written(self._side, first.shape[0], first.dtype) if self._written is not None and plain else None
        if known is not None:
            return [Captured(self._optimised(known[0], inputs), known[1], rehearsed=False)]
        return [Captured(self._optimised(graph, inputs), spec) for graph, spec in store.load(self._fits)]

    def there(self, inputs: Sequence[Tensor | RowSource], call: Call) -> bool:
        """Is a graph in memory that serves these inputs?"""
        shapes = [tuple(t.shape) for t in inputs]
        return self._serving(self._named(inputs, call)[2], shapes, "height") is not None

    def _named(self, inputs: Sequence[Tensor | RowSource], call: Call) -> tuple[Frames | None, dict[str, Any], str]:
        """Where frames are, what a capture bakes in, and that as a name."""
        frames = self._frames if self._frames is not None and self._frames.serves(inputs[0].shape, call) else None
        facts = self._call_facts(inputs, call, frames)
        return frames, facts, repr(facts)

    def _serving(self, name: str, shapes: list[tuple[int, ...]], rows: Rows) -> tuple[Captured, dict[str, int]] | None:
        """A graph in memory that serves these shapes, with its strips along ``rows``, and its symbols' values."""
        for known in self._graphs.get(name, ()):
            sizes = known.graph.bind(shapes)
            if sizes is not None:
                dim = self._frames.dim if rows == "time" and self._frames is not None else -2
                return known.divided(dim), sizes
        return None

    def _optimised(self, graph: Graph, inputs: Sequence[Tensor | RowSource]) -> Graph:
        """The graph with every pass that pays on this device, at these levels, in this type."""
        fused = {op: level != "native" for op, level in self._kernels.levels.items()}
        wide = inputs[0].dtype in (torch.float32, torch.float64)
        bias = inputs[0].device.type != "cpu" and fused["add_stats"]
        narrow = inputs[0].device.type != "cpu" and not wide and fused["conv_from_few"] and fused["conv_to_few"]
        own = self._kernels.levels["conv_add"] == "cuda" and not why_missing("cuda", "conv_add")
        epilogue = inputs[0].device.type == "cuda" and not wide and own
        summed = self._kernels.sums if epilogue else None
        subpixel = wide or fused["norm_act"]
        return optimise(graph, subpixel=subpixel, bias=bias, narrow=narrow, epilogue=epilogue, summed=summed)

    def _call_facts(self, inputs: Sequence[Tensor | RowSource], call: Call, frames: Frames | None) -> dict[str, Any]:
        """What a capture bakes in besides the model: fixed dimensions, types, options, and the caller's settings."""
        fixed = [
            [n if d < len(t.shape) - 2 or len(t.shape) < 4 or n == 1 else 0 for d, n in enumerate(t.shape)]
            for t in inputs
        ]
        counting = None
        if frames is not None:
            fixed[0][frames.dim], counting = 0, frames.option
        dtypes = [str(t.dtype) for t in inputs]
        device = inputs[0].device.type
        return {
            "side": self._side if self._step is None else f"{self._side} step",
            "fixed": fixed,
            "dtypes": dtypes,
            "device": device,
            "tensors": list(call.tensors),
            "options": [[k, repr(v)] for k, v in call.options if k != counting],
            "frames": frames is not None,
            "process": of_the_process(),
        }

    def _capture(
        self, inputs: Sequence[Tensor | RowSource], call: Call, frames: Frames | None
    ) -> tuple[Graph, Spec, bool]:
        # here, as all that a capture needs takes long to import, and most processes find their graphs
        from tvae.pipeline.session.new_graph import new_graph

        return new_graph(self._module(), self._side, self._step, inputs, call, frames, self.numbers(), self._still)
