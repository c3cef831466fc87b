"""PyTorch's convolutions. A block of code can have its calls made by a function of its own, which holds their memory
down. PyTorch's ``TorchFunctionMode`` would hand it every other call as well, thousands in a run.

In exact float32 a GPU has fast kernels for channels that lie outside, and sessions keep maps so. But what attention
gives has its channels inside; so would a convolution's result, and all that is computed of it. HunyuanVideo's decode of
9 frames 320x240 took 6.8 s so, where the untiled model takes 0.43 (H200). Such a map is copied first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from tvae.kernels.columns import without_columns
from tvae.kernels.layout import has_channels_inside

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "made_by"]

_EXACT = (torch.float32, torch.float64)
Maker = Callable[[Callable[..., Tensor], tuple[Any, ...], dict[str, Any]], Tensor]
"""Makes a call of PyTorch's function with these arguments."""

_thread = threading.local()


@contextmanager
def made_by(maker: Maker) -> Iterator[None]:
    """In this block ``maker`` makes this thread's calls."""
    before = getattr(_thread, "maker", None)
    _thread.maker = maker
    try:
        yield
    finally:
        _thread.maker = before


def _by_maker(
    function: Callable[..., Tensor], by_host: Callable[..., Tensor | None] | None = None
) -> Callable[..., Tensor]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Tensor:
        maker: Maker | None = getattr(_thread, "maker", None)
        args = (_laid_out(args[0]), *args[1:])
        if by_host is not None and args[0].device.type == "cpu" and (found := by_host(*args, **kwargs)) is not None:
            return found
        return function(*args, **kwargs) if maker is None else maker(function, args, kwargs)

    return call


def _laid_out(x: Tensor) -> Tensor:
    exact = x.is_cuda and x.dtype in _EXACT
    return x.contiguous() if exact and has_channels_inside(x.shape, x.stride()) else x


conv1d, conv2d, conv3d = map(_by_maker, (torch.conv1d, torch.conv2d, torch.conv3d), (None, None, without_columns))
conv_transpose1d = _by_maker(torch.conv_transpose1d)
conv_transpose2d = _by_maker(torch.conv_transpose2d)
conv_transpose3d = _by_maker(torch.conv_transpose3d)
