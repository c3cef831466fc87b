"""Find outputs of a graph that are the same computation."""

from __future__ import annotations

from typing import Any

from tvae.pipeline.engine.ir.graph import Graph, Ref, refs_in
from tvae.pipeline.engine.ir.sizes import Size
from tvae.pipeline.session.tensor_digest import tensor_digest

__all__ = ["DRAWING", "SameComputations"]

DRAWING = {
    *("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson", "dropout"),
    *("rand_like", "randn_like", "randint_like", "normal_", "uniform_", "bernoulli_", "exponential_", "random_"),
}
"""Functions and operations that draw random numbers."""
_INPUT_COPY = "alias_copy"
"""The operation that copies the inputs of a second call in one trace."""
_SHAPE_ONLY = {
    *("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"),
    *("new_zeros", "new_ones", "new_empty", "new_full"),
}
"""Operations that read the shape and type of their operand alone."""


class SameComputations:
    """Numbers the values of a graph so that equal computations have equal numbers."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._numbers: list[int] = []
        first: dict[Any, int] = {}
        for id_, node in enumerate(graph.nodes):
            if node.op in ("clone", _INPUT_COPY) and not node.kwargs and len(node.args) == 1:
                self._numbers.append(self._numbers[node.args[0].id])
                continue
            key: Any = id_
            if node.kind == "param" and node.target in graph.constants:
                value = graph.constants[node.target]  # each call makes one of its own
                key = "constant", value.dtype, value.shape, value.device, tensor_digest(value)
            elif node.kind == "param" or (node.kind == "call" and node.op not in DRAWING):
                kwargs = sorted(node.kwargs.items())
                key = node.kind, node.target, self._frozen(node.args), self._frozen(kwargs), node.outputs
            self._numbers.append(first.setdefault(key, id_))

    def same(self, one: int, other: int, *, of_copies: bool = False) -> bool:
        """Return whether two outputs are equal.

        of_copies: the second must depend on copies of the inputs alone, so that it is equal for other inputs, too.
        """
        return self._number(one) == self._number(other) and not (of_copies and self._reads_inputs(other))

    def is_zero(self, output: int) -> bool:
        return self._graph.nodes[self._number(output)].op in ("zeros", "zeros_like")

    def first_equal(self, output: int) -> int:
        """Return the first output that is equal to this one."""
        return next(k for k in range(output + 1) if self.same(k, output))

    def _reads_inputs(self, output: int) -> bool:
        pending, seen = [self._graph.outputs[output]], set[int]()
        while pending:
            id_ = pending.pop()
            node = self._graph.nodes[id_]
            if id_ in seen or node.op == _INPUT_COPY or node.op in _SHAPE_ONLY:
                continue
            if node.kind == "input":
                return True
            seen.add(id_)
            pending += refs_in((node.args, tuple(node.kwargs.values())))
        return False

    def _number(self, output: int) -> int:
        return self._numbers[self._graph.outputs[output]]

    def _frozen(self, arg: Any) -> Any:
        if isinstance(arg, Ref):
            return "value", self._numbers[arg.id]
        if isinstance(arg, (tuple, list)):
            return tuple(self._frozen(a) for a in arg)
        return arg if isinstance(arg, Size) else (type(arg).__name__, repr(arg))
