"""Level 5: CUDA C++ for NVIDIA cards, compiled at run time by NVRTC; the user's machine needs no toolchain.

Memory-bound passes over pixels with channels innermost. Persistent blocks walk over tiles that flow through a ring of
shared-memory stages (``bulk.cu``, ``async.cu``); what is done with them is in ``operations.cu``. ``conv_add`` and
``conv3d`` have a kernel for Hopper's tensor cores (``hopper_conv.cu``); where it does not suit they are cuDNN's, if its
frontend is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

import torch

from tvae.kernels import cudnn_frontend
from tvae.kernels.cuda import hopper_conv, norm, program
from tvae.kernels.cuda.conv3d import conv3d
from tvae.kernels.cuda.conv_add import conv_add
from tvae.kernels.cuda.norm import add_stats, group_stats, norm_act

__all__ = ["IMPLEMENTATIONS", "NEEDS", "missing", "prepare"]

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    fn.__name__: fn for fn in (group_stats, norm_act, add_stats, conv_add, conv3d)
}
"""Operation -> function, those that this level has."""
_CONVOLUTIONS = ("conv_add", "conv3d")
NEEDS = dict.fromkeys(
    _CONVOLUTIONS, lambda: _no_card() or (cudnn_frontend.missing() if hopper_conv.missing() else None)
)
"""Operation -> why it cannot run here, where that is another matter than NVRTC."""


def _no_card() -> str | None:
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return "no NVIDIA GPU"
    if torch.cuda.get_device_capability()[0] < 8:
        return "the GPU is older than compute capability 8.0"
    return None


def _no_convolutions() -> str | None:
    return _no_card() or (cudnn_frontend.missing() if hopper_conv.missing() else None)


@cache
def missing() -> str | None:
    """Why this level cannot run on this machine, or None."""
    return _no_card() or program.missing()


def prepare(operations: set[str], dtype: torch.dtype, device: int) -> None:
    """Build and load what serves these operations on maps of this type, whatever their sizes."""
    if operations & (IMPLEMENTATIONS.keys() - {*_CONVOLUTIONS}):
        norm.prepare(dtype, device)
    if not operations.isdisjoint(_CONVOLUTIONS):
        with suppress(Exception):  # a library that cannot be loaded is told where it is used
            import_module("cudnn")
