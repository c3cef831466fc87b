"""A cell that falls short of law 1 by what may be chance: tried again, with other weights and inputs of the same shape.

Where latents are few, errors are chance of the input. Where they are many, still of the weights: a channel that is
nearly the same everywhere is rounded everywhere alike, so that its error is one draw for all of the output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from sweeping.cells import Cell
from sweeping.families import Swept, build
from sweeping.inputs import input_of, options_of
from sweeping.meters import Meter
from sweeping.numbers import Compared, compared_again, errors_of
from sweeping.untiled import Untiled
from tvae.pipeline import TiledVAE
from tvae.pipeline.bench.rivals import tensor_of
from tvae.pipeline.errors import PlanError

__all__ = ["appealed"]

_OTHERS = 12
_APART = 10_000
"""Indices of cells and of groups, between one and the next."""


def appealed(
    cell: Cell, of: Swept, wrapped: Callable[..., TiledVAE], budget: int | None, meter: Meter, device: torch.device
) -> Compared:
    """By other models of the family, in that budget. What fell short is not among them: it was chosen for that."""
    pairs = []
    for n in range(1, _OTHERS + 1):
        module = nn.Module.to(build(of, device, seed=cell.group + n * _APART), getattr(torch, cell.dtype))
        untiled, x = (
            Untiled(of, module, meter),
            input_of(replace(cell, index=cell.index + n * _APART), of, module, device),
        )
        wide = torch.float64 if x.dtype == torch.float32 else torch.float32
        (own, why), (exact, _) = untiled.run(cell, x, x.dtype), untiled.run(cell, x, wide)
        if own is None or exact is None:
            raise RuntimeError(f"the untiled model ran, and now does not: {why}")
        ours = _ours(lambda vram, module=module: wrapped(module, vram=vram), budget, cell, of, x, meter)
        pairs.append((errors_of(ours, exact), errors_of(own, exact)))
    return compared_again(pairs)


def _ours(
    wrapped: Callable[[int | None], TiledVAE], budget: int | None, cell: Cell, of: Swept, x: Tensor, meter: Meter
) -> Tensor:
    """On the CPU. The first model is still there, and counts: the least budget may be a larger one now."""
    options = options_of(cell, of)
    try:
        return tensor_of(getattr(wrapped(budget), cell.side)(x, **options)).cpu()
    except PlanError as refusal:
        enough = None if refusal.enough is None else refusal.enough + meter.drift
    return tensor_of(getattr(wrapped(enough), cell.side)(x, **options)).cpu()
