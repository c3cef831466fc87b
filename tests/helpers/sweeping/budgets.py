"""Budgets of cells: multiples of what a refusal names, and whether what is named is enough."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from sweeping.meters import Meter
from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import PlanError
from tvae.pipeline.memory.amount import parse_size
from tvae.pipeline.models.calls import Side

__all__ = ["Asked"]


class Asked:
    """What is asked about one input of one side. AssertionError where an answer is not as promised."""

    def __init__(
        self,
        module: nn.Module,
        preset: str,
        meter: Meter,
        side: Side,
        shape: tuple[int, ...],
        options: dict[str, Any],
    ) -> None:
        self._module, self._preset, self._meter = module, preset, meter
        self._side: Side = side
        self._shape, self._options = shape, options

    def tiled(self, budget: int) -> TiledVAE:
        """Over the same model."""
        return TiledVAE(self._module, self._preset, vram=budget)

    def size(self, budget: str) -> int:
        """Bytes of an amount, or of ``least*1.3``: so much more than is named to a budget that holds nothing."""
        if not budget.startswith("least*"):
            return parse_size(budget)
        try:
            self.tiled(1 << 20).plan(self._shape, self._side, **self._options)
        except PlanError as refusal:
            return math.ceil(_named(refusal) * float(budget.partition("*")[2])) + self._meter.drift
        raise AssertionError("a budget of 1 MiB was not refused")

    def as_named(self, refusal: PlanError) -> int | None:
        """What a refusal names, if the device has so much."""
        refusal.__traceback__ = None  # it holds what was laid out for the refused call
        named = _named(refusal) + self._meter.drift
        return named if named <= self._meter.total() else None


def _named(refusal: PlanError) -> int:
    """Bytes that would do; the words have to tell them, too."""
    named = refusal.enough
    if named is None or f"{math.ceil(named / 2**20)} MiB" not in str(refusal):
        raise AssertionError(f"a refusal that names no budget: {refusal}")
    return named
