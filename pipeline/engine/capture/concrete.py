"""Unify captures at several concrete sizes into one graph with symbolic sizes.

This is the second way to capture a model, for Python code that needs its sizes as numbers. The model is captured at
the sizes of the call and at two larger heights and widths; the graphs must have the same operations, and each integer
that differs becomes an expression of height and width. The graph serves the sizes of the call alone: there all its
integers are the model's own. At other sizes they only tell the engine what depends on the height.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import lcm, prod
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.capture.dynamic_shapes import size_units
from tvae.pipeline.engine.ir.graph import Graph, Meta, Node, Size
from tvae.pipeline.engine.passes import simplify

__all__ = ["Corners", "example_tensor", "unify"]

_STEP = 64
"""By how much the other sizes are larger: a multiple of what models divide sizes by."""


class CapturesDiffer(Exception):
    """Raised where the captures are not one graph."""


class Corners:
    """The sizes to capture at: (height, width), (height + step, width), (height, width + step) and both larger.

    Heights and widths of several inputs are multiples of one height and width. A size of 1 stays.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.inputs = inputs
        self.units = size_units(inputs)
        self.steps = [0 if unit == 1 else _STEP for unit in self.units]

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The height and width of each capture, without repetitions; the call's own come last."""
        (height, width), (dh, dw) = self.units, self.steps
        return [*dict.fromkeys((height + down, width + right) for down in (dh, 0) for right in (dw, 0))]

    def examples(self, height: int, width: int) -> list[Tensor]:
        """Return the inputs of a capture, without memory."""
        resized = []
        for t in self.inputs:
            shape = list(t.shape)
            if t.ndim >= 4:
                shape[-2], shape[-1] = shape[-2] // self.units[0] * height, shape[-1] // self.units[1] * width
            resized.append(example_tensor(shape, t.dtype, t.device))
        return resized


def unify(graphs: Sequence[Graph], sizes: Sequence[tuple[int, int]], rows: int) -> Graph:
    """Return the graph with symbols ``h`` and ``w``, given the graph at each of these sizes, the call's own last.

    Raises CapturesDiffer where operations, or arguments other than integers, differ.
    """
    graphs = [simplify(graph) for graph in graphs]  # constants that Python code has read are gone
    first = graphs[0]
    if any(len(graph.nodes) != len(first.nodes) or graph.outputs != first.outputs for graph in graphs):
        raise CapturesDiffer("the number of operations")
    if any(not _same_constants(first, graph) for graph in graphs[1:]):
        raise CapturesDiffer("constants")
    nodes = [_unify_nodes(nodes, sizes) for nodes in zip(*(graph.nodes for graph in graphs), strict=True)]
    own = dict(zip("hw", sizes[-1], strict=True))
    # with these remainders, integer divisions give what they gave in the captures
    guards = [f"{symbol} % {_STEP} == {n % _STEP}" for symbol, n in own.items()]
    graph = replace(first, nodes=nodes, guards=guards, fixed=None, only=own)
    graph.row_symbol = graph.symbol_of(rows)
    return graph


def _same_constants(first: Graph, other: Graph) -> bool:
    return first.constants.keys() == other.constants.keys() and all(
        t.dtype == other.constants[name].dtype and torch.equal(t, other.constants[name])
        for name, t in first.constants.items()
    )


def _unify_nodes(nodes: Sequence[Node], sizes: Sequence[tuple[int, int]]) -> Node:
    first = nodes[0]
    if any(
        (n.kind, n.target, n.module, n.is_tuple) != (first.kind, first.target, first.module, first.is_tuple)
        for n in nodes
    ):
        raise CapturesDiffer(first.target)
    if len({len(n.outputs) for n in nodes}) > 1 or len({tuple(m.dtype for m in n.outputs) for n in nodes}) > 1:
        raise CapturesDiffer(first.target)
    outputs = tuple(
        Meta(_unify_values([m.shape for m in metas], sizes), metas[0].dtype)
        for metas in zip(*(n.outputs for n in nodes), strict=True)
    )
    args = _unify_values([n.args for n in nodes], sizes)
    kwargs = _unify_values([n.kwargs for n in nodes], sizes)
    return Node(first.kind, first.target, args, kwargs, first.module, outputs, first.is_tuple)


def _unify_values(values: Sequence[Any], sizes: Sequence[tuple[int, int]]) -> Any:
    first = values[0]
    if any(type(value) is not type(first) for value in values):
        raise CapturesDiffer(f"{first!r}")
    if isinstance(first, tuple | list):
        if len({len(value) for value in values}) > 1:
            raise CapturesDiffer(f"{first!r}")
        return type(first)(_unify_values(parts, sizes) for parts in zip(*values, strict=True))
    if isinstance(first, dict):
        if any(value.keys() != first.keys() for value in values):
            raise CapturesDiffer(f"{first!r}")
        return {key: _unify_values([value[key] for value in values], sizes) for key in first}
    if all(value == first or (value != value and first != first) for value in values):
        return first
    if type(first) is int:
        return _expression(values, sizes)
    raise CapturesDiffer(f"{first!r}")


def _expression(values: Sequence[int], sizes: Sequence[tuple[int, int]]) -> Size:
    """Return the expression a + b*h + c*w + d*h*w, with rational factors, that has these values at the corners."""
    at = dict(zip(sizes, values, strict=True))
    (taller, wider), (h, w) = sizes[0], sizes[-1]
    base = at[h, w]
    by_h = Fraction(at[taller, w] - base, taller - h) if taller > h else Fraction(0)
    by_w = Fraction(at[h, wider] - base, wider - w) if wider > w else Fraction(0)
    both = Fraction(0)
    if taller > h and wider > w:
        both = Fraction(at[taller, wider] - at[taller, w] - at[h, wider] + base, (taller - h) * (wider - w))
    factors = {"h*w": both, "h": by_h - both * w, "w": by_w - both * h}
    factors[""] = base - factors["h"] * h - factors["w"] * w - both * h * w
    unit = lcm(*(factor.denominator for factor in factors.values()))
    whole = {term: int(factor * unit) for term, factor in factors.items()}
    terms = [f"{n}*{term}" if term and n != 1 else term or str(n) for term, n in whole.items() if n]
    text = " + ".join(terms)
    return Size(text if unit == 1 else f"({text})//{unit}")


def example_tensor(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a contiguous tensor without memory, to trace with: nothing reads its values.

    Resize it to nothing after the capture: to print it would read memory that is not there.
    """
    strides = [prod(shape[n + 1 :]) for n in range(len(shape))]
    # the only operation of PyTorch that does not check how much memory there is
    example: Tensor = torch.ops.inductor._reinterpret_tensor(
        torch.empty(0, dtype=dtype, device=device), list(shape), strides, 0
    )
    return example
