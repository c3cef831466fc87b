"""A whole run as one CUDA graph: recorded at fixed addresses once, replayed for every further input of its shape.

Starting an operation from Python costs more than a small picture's share of it on the GPU; a replay starts all of them
at once. Nothing in a run waits for the device, so that all of it can be recorded, and recording waits for nothing
either: what the device was given before goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["Recording", "RecordingPool"]


class RecordingPool:
    """Memory that several recordings work in. Their replays never overlap, whatever streams they are asked for on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.id = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)
        self._done: torch.cuda.Event | None = None

    def enter(self) -> None:
        """The current stream waits for the last replay, and for its results to have been copied out."""
        if self._done is not None:
            self._done.wait()

    def leave(self) -> None:
        """The next replay waits for what the current stream was given so far."""
        if self._done is None:
            self._done = torch.cuda.Event()
        self._done.record()


class Recording:
    """One run, recorded. ``run`` has been called for this shape before, so that its libraries are warm."""

    def __init__(
        self,
        run: Callable[[Sequence[Tensor]], list[Tensor]],
        inputs: Sequence[Tensor],
        pool: RecordingPool,
        kept: Sequence[Tensor] = (),
    ) -> None:
        """inputs: tensors of the inputs' shapes, types and strides, on whatever device. kept: further inputs, which lie
        where they are at each replay. Raises RuntimeError (torch.OutOfMemoryError among them) where the run cannot be
        recorded."""
        self._graph, self._pool = torch.cuda.CUDAGraph(), pool
        with torch.cuda.device(pool.device), torch.no_grad():
            self._inputs = [*(torch.empty_like(x, device=pool.device) for x in inputs), *kept]
            torch.cuda.current_blas_handle()  # while a stream is recorded, none can be made
            # not by ``torch.cuda.graph``, which waits for the device and gives back what the next call would use again
            with torch.cuda.stream(pool.stream):
                # other threads copy to and from the device meanwhile: their calls are none of the recording's
                self._graph.capture_begin(pool=pool.id, capture_error_mode="thread_local")
                try:
                    # cuBLAS keeps its workspace to the end. Taken later it would lie between values, and what is free
                    # on either side be too small for large ones (decode 1024x1024: 1968 MiB, and 1536 were planned)
                    torch.cuda.current_blas_handle()
                    self._outputs = run(self._inputs)
                finally:
                    self._graph.capture_end()
            # cuBLAS took workspaces from the pool, for good; a replay may write there, and nobody else: given back they
            # serve the pool's other recordings, and go with it
            clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
            if clear is not None:
                clear()

    @property
    def copied_bytes(self) -> int:
        """What a replay takes beside the pool: the inputs that it is given, their copies, and copies of the outputs."""
        return 2 * sum(x.nbytes for x in self._inputs) + sum(t.nbytes for t in self._outputs)

    def replay(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The run's outputs for these inputs, in memory of their own. What the run left in its inputs may be given."""
        self.bring(inputs)
        return self.start()

    @torch.no_grad()
    def bring(self, inputs: Sequence[Tensor]) -> None:
        """These inputs to where the run reads them, for a ``start`` that comes before any of the pool's others."""
        with torch.cuda.device(self._pool.device):
            self._pool.enter()
            for ours, given in zip(self._inputs, inputs, strict=True):
                if given.data_ptr() != ours.data_ptr():
                    ours.copy_(given)

    @torch.no_grad()
    def start(self) -> list[Tensor]:
        """The outputs for the inputs that have been brought."""
        with torch.cuda.device(self._pool.device):
            self._graph.replay()
            outputs = [t.clone() for t in self._outputs]
            self._pool.leave()
        return outputs
