"""A draw from the posterior: mean + std * noise."""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.kernels.operation import ONE_PASS, Operation
from tvae.kernels.oracle import Case, Maps, Oracle, bytes_of

__all__ = ["OPERATION", "case", "sample"]


def sample(mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
    """mean + std·noise in one pass: a draw from the posterior."""
    return torch.addcmul(mean, std, noise)


def case(make: Oracle, label: str, *shape: int) -> Case:
    mean, std, noise = (make.noise(*shape).to(make.dtype) for _ in range(3))
    y = mean.double() + std.double() * noise.double()
    return make.case(label, (mean, std, noise), expected=y, moved=4 * bytes_of(mean))


def _measured(make: Oracle, size: int, channels: int) -> Case:
    """The latents of that size."""
    small = max(2, size // 8)
    return case(make, "measured", 1, channels, small, small)


def _small(make: Oracle, _maps: Maps) -> list[Case]:
    return [case(make, "latents", 1, 16, 17, 9), case(make, "batch", 2, 4, 8, 8)]


OPERATION = Operation(
    sample, _measured, _small, left_out=dict.fromkeys(("script", "compile", "triton", "cuda"), ONE_PASS)
)
