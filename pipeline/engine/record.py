"""A whole run as one CUDA graph: recorded at fixed addresses once, replayed for every further input of its shape.

Starting an operation from Python costs more than a small picture's share of it on the GPU; a replay starts all of them
at once. Nothing in a run waits for the device, so that all of it can be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["Recording"]


class Recording:
    """One run, recorded. ``run`` has been called for this shape before, so that its libraries are warm."""

    def __init__(self, run: Callable[[Sequence[Tensor]], list[Tensor]], inputs: Sequence[Tensor]) -> None:
        """Raises RuntimeError (torch.OutOfMemoryError among them) where the run cannot be recorded."""
        self._inputs = [torch.empty_like(x) for x in inputs]
        self._graph = torch.cuda.CUDAGraph()
        device = inputs[0].device
        # other threads read files and copy to and from the device meanwhile: their calls are none of the recording's
        record = torch.cuda.graph(self._graph, capture_error_mode="thread_local")
        with torch.cuda.device(device), torch.no_grad(), record:
            self._outputs = run(self._inputs)

    @torch.no_grad()
    def replay(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The run's outputs for these inputs, in memory of their own."""
        for ours, given in zip(self._inputs, inputs, strict=True):
            ours.copy_(given)
        with torch.cuda.device(self._inputs[0].device):
            self._graph.replay()
        return [t.clone() for t in self._outputs]
