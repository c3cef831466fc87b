"""A run with weights that others may write to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tvae.pipeline.session.ready import Ready
from tvae.pipeline.session.weights import PreparedWeights

__all__ = ["guarded"]


def guarded(
    ready: Ready,
    again: Callable[[], Ready],
    what: tuple[Any, ...],
    weights: PreparedWeights | None,
    *,
    on_cuda: bool,
) -> list[Tensor]:
    """Run. Of watched weights a checksum is taken: on a GPU beside the run, which is made again if need be.

    what: of ``Runner.run``. again: the run for weights that were written to. weights: None where nobody watches them.
    """
    sinks = what[2]
    if weights is None:
        return ready.runner.run(*what)
    before = not on_cuda or ready.runner.noisy or bool(sinks)  # noise is drawn once, rows leave once
    start = None if before else weights.start()
    written = weights.look() if start is None else None  # else when the device has its work
    if before and written is not None and written():
        ready = again()
        weights.look()  # what is written from now on is seen by the next call
    tensors = ready.runner.run(*what)
    written = written or weights.look(start)
    if not before and written():
        ready = again()
        weights.look()
        tensors = ready.runner.run(*what)
    return tensors
