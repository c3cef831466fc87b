"""What is known of an operation besides its implementations at the faster levels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tvae.kernels.oracle import Case, Maps, Oracle

__all__ = ["Operation"]
__all__ += ["A_COPY", "FEW_BYTES", "LIMITED", "NO_REDUCTIONS", "ONE_PASS", "SAME_CALL"]

NO_REDUCTIONS = "TorchScript's fuser takes no reductions"
SAME_CALL = "it would call the same convolution, attention or product as the definition"
ONE_PASS = "one `addcmul` is one pass already"
LIMITED = "Triton's version is already limited by memory or by matrix products"
FEW_BYTES = "few bytes compared with the model, and the bits must be the same everywhere"
A_COPY = "there is nothing to fuse but a copy"


@dataclass(frozen=True)
class Operation:
    """One fused operation: what it computes, how that is checked and timed, and where it is left out."""

    definition: Callable[..., Any]
    """Level ``native``: PyTorch operations that define the result. Its name is the operation's, and every level has its
    parameters."""
    measured: Callable[[Oracle, int, int], Case]
    """(oracle, size, channels) -> the call that ``tvae bench kernels`` times: one picture of size x size with so many
    channels, channels innermost, everything fused. Its ``moved`` and ``flops`` say what a perfect level would need."""
    small: Callable[[Oracle, Maps], list[Case]]
    """Small calls that cover the arguments: options left out, batches, bands of rows, clips, odd sizes."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Level -> why it has no implementation; every other level has one."""
    unplanned: bool = False
    """May its level ``cuda`` take memory that no plan knows, such as the workspaces of cuDNN's frontend? Where memory
    is bounded, its definition runs."""

    @property
    def name(self) -> str:
        return self.definition.__name__
