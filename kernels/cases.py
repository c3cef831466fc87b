"""Which calls the equivalence check and the benchmark make of an operation."""

from __future__ import annotations

import torch

from tvae.kernels.operations import operation_of
from tvae.kernels.oracle import Case, Oracle

__all__ = ["measured_case", "small_cases"]


def measured_case(operation: str, dtype: torch.dtype, device: torch.device, size: int, channels: int) -> Case:
    """The call that is timed: one picture of size x size with so many channels, or what an operation has instead."""
    return operation_of(operation).measured(Oracle(dtype, device), size, channels)


def small_cases(operation: str, dtype: torch.dtype, device: torch.device) -> list[Case]:
    """Small calls that cover an operation's arguments: options left out, batches, bands of rows, clips, odd sizes."""
    make = Oracle(dtype, device)
    return operation_of(operation).small(make, make.maps())
