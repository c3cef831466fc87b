"""A cell that falls short of law 1 by what may be chance: tried again, with other inputs of the same shape, or weights.

Of few latents, errors are chance of the input. Of many, they may still be chance of the weights: a channel that is
nearly the same everywhere is rounded everywhere alike, so that its error is one draw for all of the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from sweeping.cells import Cell
from sweeping.families import Swept, build
from sweeping.inputs import input_of, latents_of, options_of
from sweeping.meters import Meter
from sweeping.numbers import FEW, Compared, Errors, compared_again, errors_of
from sweeping.untiled import Untiled
from tvae.pipeline import TiledVAE
from tvae.pipeline.bench.rivals import tensor_of

__all__ = ["appealed"]

_INPUTS = 12
_WEIGHTS = 8
_APART = 10_000
"""Indices of cells, between an input and the next."""


def appealed(
    cell: Cell,
    of: Swept,
    untiled: Untiled,
    tiled: TiledVAE,
    wrapped: Callable[[nn.Module], TiledVAE],
    meter: Meter,
    device: torch.device,
) -> Compared:
    """What fell short is not among those that are tried: it was chosen for that. wrapped: another model, as ours."""
    if math.prod(latents_of(cell, of)) <= FEW:
        return compared_again([_pair(cell, n, of, untiled, tiled, device) for n in range(1, _INPUTS + 1)])
    pairs = []
    for n in range(1, _WEIGHTS + 1):
        module = nn.Module.to(build(of, device, seed=cell.group + n * _APART), getattr(torch, cell.dtype))
        pairs.append(_pair(cell, n, of, Untiled(of, module, meter), wrapped(module), device))
    return compared_again(pairs)


def _pair(
    cell: Cell, n: int, of: Swept, untiled: Untiled, tiled: TiledVAE, device: torch.device
) -> tuple[Errors, Errors]:
    """Our errors and the untiled model's, of the nth other input."""
    x = input_of(replace(cell, index=cell.index + n * _APART), of, untiled.module, device)
    wide = torch.float64 if x.dtype == torch.float32 else torch.float32
    (own, why), (exact, _) = untiled.run(cell, x, x.dtype), untiled.run(cell, x, wide)
    if own is None or exact is None:
        raise RuntimeError(f"the untiled model ran, and now does not: {why}")
    ours = tensor_of(getattr(tiled, cell.side)(x, **options_of(cell, of))).cpu()
    return errors_of(ours, exact), errors_of(own, exact)
