"""Weights of one side alone: which side a tensor is of, and what stands in a module for the side that is not there.

People publish encoders and decoders one by one. Such a module computes its own side as it always does. The other side
has no weights: its submodules are ``Absent``, so that no call can compute with values that nobody gave.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.calls import SIDES, Side

__all__ = ["Absent", "check_lacks", "check_side", "leave_out", "other_side", "part_of", "side_of"]

_PARTS: dict[Side, tuple[str, ...]] = {"encode": ("encoder", "quant_conv"), "decode": ("decoder", "post_quant_conv")}
"""Children of an autoencoder that one side alone computes with."""


def side_of(name: str) -> Side | None:
    """Of a tensor, by its name in the module; None for those that neither side or both may need."""
    first = name.partition(".")[0]
    return next((side for side in SIDES if first in _PARTS[side]), None)


def other_side(side: Side) -> Side:
    """There are two."""
    return "decode" if side == "encode" else "encode"


def part_of(side: Side) -> str:
    """What computes it: an encoder or a decoder."""
    return _PARTS[side][0]


class Absent(nn.Module):
    """In the place of a submodule whose weights are not there. It has none; calling it raises UsageError."""

    def __init__(self, side: Side, reason: str) -> None:
        super().__init__()
        self.side, self.reason = side, reason

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        """Raises UsageError: the reason."""
        raise UsageError(self.reason)


def leave_out(module: nn.Module, side: Side, reason: str) -> None:
    """Put ``Absent`` in the place of all that computes this side."""
    for name in _PARTS[side]:
        if isinstance(getattr(module, name, None), nn.Module):
            setattr(module, name, Absent(side, reason))


def check_lacks(lacks: Mapping[Side, str], side: Side) -> None:
    """Raises UsageError where the weights do not hold this side. lacks: what to say then, by side."""
    if side in lacks:
        raise UsageError(lacks[side])


def check_side(module: nn.Module, side: Side) -> None:
    """Raises UsageError, which says what is missing, where the module has no weights for this side."""
    for child in module.children():
        if isinstance(child, Absent) and child.side == side:
            raise UsageError(child.reason)
