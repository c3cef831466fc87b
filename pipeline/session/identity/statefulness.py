"""Recognise models that keep state between calls while they are captured: they cannot become graphs.

A capture runs the model's own code. If that changes an attribute, the next call may read it, so the model is called a
second time within the same trace, on copies of its inputs. Where the second call leaves another value again, or
computes its result in another way, the result depends on earlier calls. Attributes that each call only writes do no
harm.
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
from tvae.pipeline.session.identity.model_state import Snapshot, changed_caches
from tvae.pipeline.session.outputs import Spec
from tvae.pipeline.session.same_computations import SameComputations

__all__ = ["StateWatch"]

Returned = tuple[list[Tensor], Spec]


class StateWatch:
    """Watches one module for one capture, which may trace it several times."""

    def __init__(self, module: nn.Module, side: str) -> None:
        self._module, self._side = module, side
        self._caches = changed_caches()
        self._before = Snapshot(module)
        self._written: list[str] = []
        self._stays = True
        self._again: list[Tensor] = []

    def called(self, call: Callable[..., Returned], *inputs: Tensor) -> Returned:
        """Return what the call returns, and call again if the first wrote anything.

        Call this while tracing. It removes what was written, so that no other trace meets this one's tensors.
        """
        before = Snapshot(self._module, in_trace=True)
        try:
            return self._called(call, inputs, before)
        finally:
            before.restore()
            self._caches = changed_caches(self._caches)

    def _called(self, call: Callable[..., Returned], inputs: Sequence[Tensor], before: Snapshot) -> Returned:
        tensors, spec = call(*inputs)
        self._written, self._stays, self._again = before.changed(), True, []
        if self._written:
            after = Snapshot(self._module, in_trace=True, after_call=True)
            first_spec = copy.deepcopy(spec)
            try:
                self._again, second_spec = call(*[torch.ops.aten.alias_copy(t) for t in inputs])
                self._stays = second_spec == first_spec and not after.changed()
            except (RuntimeError, TypeError, ValueError, TvaeError) as error:
                if is_transient([error]):
                    raise
                self._stays = False  # it started from what the first call left
        return tensors, spec

    @property
    def extra(self) -> list[Tensor]:
        """Tensors that the traced function returns after all its own outputs."""
        return self._again

    def checked(self, graph: Graph) -> Graph:
        """Return the graph without the extra outputs. Raises UsageError for a model that keeps state, and names it."""
        count = len(self._again)
        if self._written:
            proof = SameComputations(graph)
            start = len(graph.outputs) - count
            if not self._stays or not all(proof.same(n, start + n, of_copies=True) for n in range(count)):
                names = ", ".join(self._written[:3])
                raise UsageError(
                    f"{type(self._module).__name__} keeps state between calls: {self._side}() changes {names}; "
                    "tvae runs models whose result depends on their arguments alone"
                )
            graph = remove_unused(replace(graph, outputs=graph.outputs[:start]))
        return graph

    def restore(self) -> None:
        """Restore the module as it was before the capture."""
        self._before.restore()
