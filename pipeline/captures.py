"""The captured graphs of one side of one VAE: those in memory, those on disk, and new ones.

A graph serves every input that its guards admit; what a capture bakes in besides the model (types, options, how many
frames) is part of its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tvae.kernels import Kernels, why_missing
from tvae.pipeline.budget import Rows
from tvae.pipeline.engine.boundary import RowSource
from tvae.pipeline.engine.capture import capture
from tvae.pipeline.engine.graph import Graph
from tvae.pipeline.engine.passes import optimise, simplify
from tvae.pipeline.errors import UnsupportedOp
from tvae.pipeline.graph_store import GraphStore, graph_key
from tvae.pipeline.models.reference import Side, call_reference, reference_mode
from tvae.pipeline.outputs import Spec, flatten
from tvae.pipeline.rehearse import prepared

__all__ = ["Call", "Captured", "Captures", "Frames", "Step"]

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


@dataclass
class Captured:
    """spec: rebuilds the return value from the graph's outputs. rehearsed: its kernels have been asked for; those of a
    graph that was found on disk are taken to be there, too."""

    graph: Graph
    spec: Spec
    rehearsed: bool = True


class Captures:
    """See the module's docstring; the arguments are those of ``Compiled``."""

    def __init__(
        self,
        side: Side,
        module: Callable[[], nn.Module],
        digest: str | None,
        facts: Mapping[str, Any],
        kernels: Kernels,
        step: Step | None,
        frames: Frames | None,
    ) -> None:
        self._side: Side = side
        self._module, self._digest, self._facts = module, digest, dict(facts)
        self._kernels, self._step, self._frames = kernels, step, frames
        self._graphs: dict[str, list[Captured]] = {}

    def of(
        self, inputs: Sequence[Tensor | RowSource], shapes: list[tuple[int, ...]], call: Call, rows: Rows
    ) -> tuple[Captured, dict[str, int]]:
        """A graph that serves these inputs, and its symbols' values. Raises UnsupportedOp."""
        facts = self._call_facts(inputs, call, rows)
        name = json.dumps(facts, sort_keys=True, default=str)
        found = self._serving(name, shapes)
        if found is not None:
            return found
        store = GraphStore(graph_key(self._digest, {**self._facts, **facts}))
        dims = 3 if len(inputs[0].shape) == 5 else 2
        with prepared(self._kernels, inputs[0].dtype, inputs[0].device, dims):
            if name not in self._graphs:
                self._graphs[name] = [Captured(self._optimised(g, inputs), s) for g, s in store.load()]
                found = self._serving(name, shapes)
            if found is not None:
                return found
            plain, spec = self._capture(inputs, call, rows)
        store.save(plain, spec)
        self._graphs[name].append(Captured(self._optimised(plain, inputs), spec, rehearsed=False))
        found = self._serving(name, shapes)
        if found is None:
            why = f"the capture does not serve its own shape {shapes}"
            raise UnsupportedOp("torch.export", self._side, why, whole=False)
        return found

    def _serving(self, name: str, shapes: list[tuple[int, ...]]) -> tuple[Captured, dict[str, int]] | None:
        """A graph in memory that serves these shapes, and its symbols' values."""
        for known in self._graphs.get(name, ()):
            sizes = known.graph.bind(shapes)
            if sizes is not None:
                return known, sizes
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

    def _capture(self, inputs: Sequence[Tensor | RowSource], call: Call, rows: Rows) -> tuple[Graph, Spec]:
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
        return graph, spec
