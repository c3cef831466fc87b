"""The untiled model: the call that ours is held against, in its own type and in a wider one, where it fits."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sweeping.cells import LARGE, Cell
from sweeping.families import Swept
from sweeping.inputs import options_of
from sweeping.meters import Meter
from tvae.pipeline.bench.rivals import tensor_of
from tvae.pipeline.bench.timing import is_out_of_memory
from tvae.pipeline.models.reference import call_reference, reference_mode

__all__ = ["Untiled", "exact_float32", "is_lost", "line_of"]

_SHARE = 0.85
"""Of what is free, that the untiled call is tried in."""


class Untiled:
    """The model's own call on the whole input, with blended tiling off."""

    def __init__(self, of: Swept, module: nn.Module, meter: Meter) -> None:
        self.module = module
        self._of, self._meter = of, meter

    def run(self, cell: Cell, x: Tensor, dtype: torch.dtype) -> tuple[Tensor | None, float | str]:
        """(its result, on the CPU; seconds of this first call), or None and why there is none.

        dtype: of the computation; the stored weights are cast once. Maps of 2^31 elements are left out: convolutions
        of so many take minutes, and were seen to give wrong numbers.
        """
        of = self._of
        if of.widest(cell.side, cell.pixels, cell.frames) >= LARGE:
            return None, "maps of 2^31 elements"
        if of.live(cell.side, cell.pixels, cell.frames) * dtype.itemsize > _SHARE * self._meter.free():
            return None, "no memory for the untiled model"
        try:
            module = self.module
            if x.dtype != dtype:
                module = nn.Module.to(copy.deepcopy(module), dtype)
            with reference_mode(module), exact_float32():
                call = self._meter.call(
                    lambda: tensor_of(call_reference(module, cell.side, x.to(dtype), **options_of(cell, of)))
                )
            return call.result.cpu(), call.seconds
        except Exception as error:
            if is_lost(error):
                raise
            if is_out_of_memory(error):
                return None, "no memory for the untiled model"
            return None, f"refused by the model: {line_of(error)}"


def is_lost(error: BaseException) -> bool:
    """Can nothing run on the device any more?"""
    return "CUDA error" in str(error) and "out of memory" not in str(error)


def line_of(error: BaseException) -> str:
    """What it says first."""
    return (str(error).strip().splitlines() or [""])[0][:300]


@contextmanager
def exact_float32() -> Iterator[None]:
    """Without TF32, whatever this PyTorch starts with."""
    matmul, convolution = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = matmul.fp32_precision, convolution.fp32_precision
    matmul.fp32_precision = convolution.fp32_precision = "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision, convolution.fp32_precision = before
