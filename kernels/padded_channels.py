"""conv3d whose result has channels that are no multiple of eight, as the first channels of one that has more.

cuDNN's kernels for tensor cores want channels in eights. For others cuDNN works in copies, and where it is given no
memory for them it takes a kernel without tensor cores: on an H100, 256 to 12 channels took 17.7 ms so, and 0.5 with
memory. Which way is faster is tried once for a size.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.kernels import library_convolutions
from tvae.kernels.prebuild import asked
from tvae.kernels.trial import milliseconds

__all__ = ["conv3d", "suits"]

_EIGHT, _LAST = 8, torch.channels_last_3d
_ENOUGH = 5e9
"""Operations of a convolution that are worth a trial."""
_KEPT = 1024
"""Sizes whose trials are remembered."""
_log = logging.getLogger("tvae")
_faster: dict[tuple[Any, ...], bool] = {}
_lock = threading.Lock()


def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """See ``operations.conv3d``: PyTorch's, or the padded one, of what ``suits``."""
    more = tuple(stride), tuple(padding), tuple(dilation), groups

    def plain() -> Tensor:
        return library_convolutions.conv3d(x, weight, bias, list(stride), list(padding), list(dilation), groups)

    def padded() -> Tensor:
        channels = -weight.shape[0] % _EIGHT
        wide = F.pad(weight, (0, 0) * (weight.ndim - 1) + (0, channels)).contiguous(
            memory_format=torch.channels_last_3d
        )
        shift = None if bias is None else F.pad(bias, (0, channels))
        y = library_convolutions.conv3d(x, wide, shift, list(stride), list(padding), list(dilation), groups)
        return y[:, : weight.shape[0]].contiguous(memory_format=_LAST)

    key = (*((t.shape, t.stride(), t.dtype, t.device) for t in (x, weight)), bias is None, more)
    return padded() if _tried(key, plain, padded) else plain()


def suits(x: Tensor, weight: Tensor, groups: int) -> bool:
    """Is it worth a trial?"""
    if weight.shape[0] % _EIGHT == 0 or groups != 1 or x.dtype not in (torch.bfloat16, torch.float16):
        return False
    work = 2.0 * weight.numel() * x[:, 0].numel()
    return x.is_cuda and x.stride(1) == 1 and asked() is None and work > _ENOUGH


def _tried(key: tuple[Any, ...], plain: Callable[[], Tensor], padded: Callable[[], Tensor]) -> bool:
    """Is the padded one faster?"""
    with _lock:
        if key not in _faster:
            if torch.cuda.is_current_stream_capturing():  # nothing can be timed now
                return False
            if len(_faster) >= _KEPT:
                del _faster[next(iter(_faster))]  # the oldest
            theirs = milliseconds(plain)
            try:
                ours = milliseconds(padded)
            except torch.OutOfMemoryError:
                ours = float("inf")
            _log.debug("conv3d of %s: padded %.2f ms, PyTorch's %.2f ms", list(key[0][0]), ours, theirs)
            _faster[key] = ours < theirs
        return _faster[key]
