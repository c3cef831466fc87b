"""Level 5: CUDA C++ for NVIDIA cards, compiled at run time by NVRTC; the user's machine needs no toolchain.

Memory-bound passes over pixels with channels innermost. Persistent blocks walk over tiles that flow through a ring of
shared-memory stages (``bulk.cu``, ``async.cu``); what is done with them is in ``operations.cu``. Convolutions have a
kernel for Hopper's tensor cores (``hopper_conv.cu``); where it does not suit they are cuDNN's, some if its frontend is
installed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch

from tvae.kernels import cudnn_frontend
from tvae.kernels.cuda import hopper_conv, norm, program
from tvae.kernels.cuda.conv3d import conv3d
from tvae.kernels.cuda.conv_add import conv_add
from tvae.kernels.cuda.down_conv import down_conv
from tvae.kernels.cuda.enlarge_conv import enlarge_conv
from tvae.kernels.cuda.launch import no_card
from tvae.kernels.cuda.norm import add_stats, group_stats, norm_act

__all__ = ["IMPLEMENTATIONS", "NEEDS", "missing", "prepare", "sums"]

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    fn.__name__: fn for fn in (group_stats, norm_act, add_stats, conv_add, conv3d, down_conv, enlarge_conv)
}
"""Operation -> function, those that this level has."""


def _no_convolutions() -> str | None:
    return no_card() or (cudnn_frontend.missing() if hopper_conv.missing() else None)


_log = logging.getLogger("tvae")
_CONVOLUTIONS = ("conv_add", "conv3d", "down_conv", "enlarge_conv")
NEEDS = {
    **dict.fromkeys(("conv_add", "conv3d"), _no_convolutions),
    **dict.fromkeys(("down_conv", "enlarge_conv"), hopper_conv.missing),
}
"""Operation -> why it cannot run here, where that is another matter than NVRTC."""


@cache
def missing() -> str | None:
    """Why this level cannot run on this machine, or None."""
    return no_card() or program.missing()


def sums(outer: int, inner: int, kernel: int) -> bool:
    """Do the operations that have the kernel for Hopper take the statistics of the result of such a convolution
    (channels out, in, kernel) as it is made?"""
    return hopper_conv.missing() is None and hopper_conv.takes(outer, inner, kernel)


def prepare(operations: set[str], dtype: torch.dtype, device: int) -> None:
    """Build and load what serves these operations on maps of this type, whatever their sizes."""
    if operations & (IMPLEMENTATIONS.keys() - {*_CONVOLUTIONS}):
        norm.prepare(dtype, device)
    if not operations.isdisjoint(_CONVOLUTIONS):
        try:
            import_module("cudnn")
        except Exception:  # a library that cannot be loaded is told where it is used
            _log.debug("cuDNN's frontend is not loaded", exc_info=True)
