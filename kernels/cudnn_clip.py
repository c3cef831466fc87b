"""conv3d by a kernel of cuDNN's that PyTorch does not reach.

For 96 channels cuDNN suggests kernels of the generation before, and further down in its list has one
for Hopper whose inner tiles are 32 channels deep: twice as fast on an H200, by the same sums. PyTorch takes the first
suggestion, or tries all of them for seconds. Here that one alone is tried against PyTorch's choice, once for a size.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tvae.kernels import library_convolutions
from tvae.kernels.cudnn_frontend import MOST, Map, handle, kind_of, new_graph
from tvae.kernels.prebuild import asked
from tvae.kernels.trial import milliseconds

__all__ = ["conv3d"]

_HOPPER = (9, 0)
_DEEP, _TILE = 64, 32
"""Channels of the inner tiles that cuDNN suggests, and of those that are wanted where the former do not divide them."""
_WANTED = "eng62_k2=0_k13=0_"
"""What the names of such plans begin with (cuDNN 9.19): 128x128 results, 32 channels deep. Should they mean something
else in another release, a trial shows whether it is faster."""
_ENOUGH = 5e10
"""Operations of a convolution that are worth a trial."""
_KEPT = 1024
"""Sizes whose plans are remembered."""
_WORKSPACE = 1 << 20
"""Bytes at most: plans of memory know nothing of it."""

_log = logging.getLogger("tvae")
_plans: dict[_Clip, Callable[[Tensor, Tensor], Tensor] | None] = {}
_lock = threading.Lock()


class _Clip(NamedTuple):
    """What a plan is made for: x and weight as [N, C, T, H, W]."""

    dtype: torch.dtype
    device: int
    padding: tuple[int, ...]
    maps: tuple[Map, ...]


def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """See ``operations.conv3d``: PyTorch's, where there is nothing faster."""
    plain = bias is None and groups == 1 and set(stride) == set(dilation) == {1}
    if plain and asked() is None and _suits(x, weight):
        maps = tuple(Map(tuple(t.shape), t.stride()) for t in (x, weight))
        run = _plan(_Clip(x.dtype, x.device.index, tuple(padding), maps), x, weight)
        if run is not None:
            return run(x, weight)
    return library_convolutions.conv3d(x, weight, bias, list(stride), list(padding), list(dilation), groups)


def _suits(x: Tensor, weight: Tensor) -> bool:
    outer, inner = weight.shape[:2]
    if inner % _DEEP != _TILE or outer % _TILE or x.dtype not in (torch.bfloat16, torch.float16):
        return False
    alike = weight.dtype == x.dtype and weight.device == x.device and x.is_cuda
    aligned = all(t.stride(1) == 1 and t.data_ptr() % 16 == 0 for t in (x, weight))
    work = 2.0 * weight.numel() * x[:, 0].numel()
    small = max(x.numel(), x[:, 0].numel() * outer) < MOST
    return alike and aligned and small and work > _ENOUGH and torch.cuda.get_device_capability(x.device) == _HOPPER


def _plan(wanted: _Clip, x: Tensor, weight: Tensor) -> Callable[[Tensor, Tensor], Tensor] | None:
    """How to compute what is wanted, None for PyTorch's way."""
    with _lock:
        if wanted not in _plans:
            if torch.cuda.is_current_stream_capturing():  # nothing can be timed now
                return None
            if len(_plans) >= _KEPT:
                del _plans[next(iter(_plans))]  # the oldest
            _plans[wanted] = _found(wanted, x, weight)
        return _plans[wanted]


def _found(wanted: _Clip, x: Tensor, weight: Tensor) -> Callable[[Tensor, Tensor], Tensor] | None:
    try:
        run = _built(wanted)
        if run is None:
            return None
        theirs = milliseconds(lambda: library_convolutions.conv3d(x, weight, None, 1, list(wanted.padding)))
        ours = milliseconds(lambda: run(x, weight))
    except Exception:  # the library looks for others while it is imported, and has exceptions of its own
        _log.debug("conv3d: not by cuDNN's frontend", exc_info=True)
        return None
    _log.debug("conv3d of %s: %.2f ms, PyTorch's %.2f ms", list(x.shape), ours, theirs)
    return run if ours < theirs else None


def _built(wanted: _Clip) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The first plan of the wanted kind that needs next to no memory to work in."""
    import cudnn

    device, kind, padding = torch.device("cuda", wanted.device), kind_of(wanted.dtype), list(wanted.padding)
    graph = new_graph(device, wanted.dtype)
    image, taps = (graph.tensor(dim=list(m.shape), stride=list(m.strides), data_type=kind) for m in wanted.maps)
    ones = {"stride": [1, 1, 1], "dilation": [1, 1, 1]}
    result = graph.conv_fprop(image=image, weight=taps, pre_padding=padding, post_padding=padding, **ones)
    (n, _, *sizes), (outer, _, *kernel) = (m.shape for m in wanted.maps)
    shape = (n, outer, *(s + 2 * p - k + 1 for s, p, k in zip(sizes, padding, kernel, strict=True)))
    strides = torch.empty(shape, device="meta", memory_format=torch.channels_last_3d).stride()
    result.set_output(True).set_data_type(kind).set_dim(list(shape)).set_stride(list(strides))
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.B])
    for at in range(graph.get_execution_plan_count()):
        if graph.get_plan_name_at_index(at).startswith(_WANTED):
            graph.build_plan_at_index(at)
            workspace = graph.get_workspace_size_plan_at_index(at)
            if workspace <= _WORKSPACE:
                break
    else:
        return None

    def run(x: Tensor, weight: Tensor) -> Tensor:
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last_3d)
        work = torch.empty(max(1, workspace), dtype=torch.uint8, device=x.device)
        with torch.cuda.device(device):
            graph.execute_plan_at_index({image: x, taps: weight, result: y}, work, at, handle=handle(device))
        return y

    return run
