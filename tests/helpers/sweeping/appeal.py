"""A small cell that falls short of law 1 by what may be chance: tried again, with other inputs of the same shape."""

from __future__ import annotations

from dataclasses import replace

import torch

from sweeping.cells import Cell
from sweeping.families import Swept
from sweeping.inputs import input_of, options_of
from sweeping.numbers import Compared, compared_again, errors_of
from sweeping.untiled import Untiled
from tvae.pipeline import TiledVAE
from tvae.pipeline.bench.rivals import tensor_of

__all__ = ["appealed"]

_INPUTS = 12
_APART = 10_000
"""Indices of cells, between an input and the next."""


def appealed(cell: Cell, of: Swept, untiled: Untiled, tiled: TiledVAE, device: torch.device) -> Compared:
    """By the same object. The input that fell short is not among them: it was chosen for that."""
    pairs = []
    for n in range(1, _INPUTS + 1):
        x = input_of(replace(cell, index=cell.index + n * _APART), of, untiled.module, device)
        wide = torch.float64 if x.dtype == torch.float32 else torch.float32
        (own, why), (exact, _) = untiled.run(cell, x, x.dtype), untiled.run(cell, x, wide)
        if own is None or exact is None:
            raise RuntimeError(f"the untiled model ran, and now does not: {why}")
        ours = tensor_of(getattr(tiled, cell.side)(x, **options_of(cell, of))).cpu()
        pairs.append((errors_of(ours, exact), errors_of(own, exact)))
    return compared_again(pairs)
