"""Models that keep state between calls cannot become graphs: they are recognised while they are captured.

A capture runs the model's own code. If that leaves an attribute other than it was, the next call may read it. So the
model is called a second time within the same trace: where that leaves another value again, or computes its result in
another way, a result depends on the calls before it. So it does where the second call reads what the first has made of
its inputs: to tell that, the second has copies of them. Attributes that each call only writes (scratch) do no harm.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from tvae.pipeline.engine.capture.capture import is_transient
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.passes import remove_unused
from tvae.pipeline.errors import TvaeError, UsageError
from tvae.pipeline.session.identity.outside import Outside
from tvae.pipeline.session.identity.snapshot import Snapshot
from tvae.pipeline.session.outputs.rebuilding import SameComputations
from tvae.pipeline.session.outputs.spec import Spec

__all__ = ["StateWatch"]

Returned = tuple[list[Tensor], Spec]


class StateWatch:
    """See the module's docstring. One for a capture, which may trace several times."""

    def __init__(self, module: nn.Module, side: str) -> None:
        self._module, self._side = module, side
        self._outside = Outside(module)
        self._before = Snapshot(module)
        self._written: list[str] = []
        self._stays = True
        self._again: list[Tensor] = []

    def called(self, call: Callable[..., Returned], *inputs: Tensor) -> Returned:
        """What the call with these inputs returns. It is made a second time if the first wrote anything. To be called
        while tracing: what was written is taken away again, so that no other trace meets this one's tensors."""
        before = Snapshot(self._module, self._outside, traced=True)
        try:
            return self._called(call, inputs, before)
        finally:
            before.restore()
            self._outside.empty_caches()

    def _called(self, call: Callable[..., Returned], inputs: Sequence[Tensor], before: Snapshot) -> Returned:
        tensors, spec = call(*inputs)
        self._written, self._stays, self._again = before.changed(), True, []
        if self._written:
            after = Snapshot(self._module, self._outside, traced=True, called=True)
            described = copy.deepcopy(spec)
            try:
                self._again, again = call(*[torch.ops.aten.alias_copy(t) for t in inputs])
                self._stays = again == described and not after.changed()
            except (RuntimeError, TypeError, ValueError, TvaeError) as error:
                if is_transient([error]):
                    raise
                self._stays = False  # it started from what the first call left
        return tensors, spec

    @property
    def extra(self) -> list[Tensor]:
        """To be returned by the traced function after all its own outputs."""
        return self._again

    def checked(self, graph: Graph) -> Graph:
        """The graph without the extra outputs. Raises UsageError for a model that keeps state, and names it."""
        count = len(self._again)
        if self._written:
            proof = SameComputations(graph)
            start = len(graph.outputs) - count
            if not self._stays or not all(proof.same(n, start + n, apart=True) for n in range(count)):
                names = ", ".join(self._written[:3])
                raise UsageError(
                    f"{type(self._module).__name__} keeps state between calls: {self._side}() changes {names}; "
                    "tvae runs models whose result depends on their arguments alone"
                )
            graph = remove_unused(replace(graph, outputs=graph.outputs[:start]))
        return graph

    def restore(self) -> None:
        """The module as it was before."""
        self._before.restore()
