"""conv_add by cuDNN's fused engines: bias and residual come in the convolution's epilogue, in float32, rounded once.

PyTorch asks cuDNN for bare convolutions alone; its Python frontend describes the whole sum. Only kernels that come with
the library are taken: one that cuDNN would have to compile first takes a second and is no faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tvae.kernels.cudnn_frontend import MOST, Map, handle, kind_of, missing, new_graph
from tvae.kernels.registry import Failed, Unsupported

__all__ = ["check", "conv_add"]

_ALIGNED = 16
"""Bytes; channels and addresses are multiples of it."""
_WORKSPACE = 32 << 20
"""Bytes at most: plans of memory know nothing of it."""


class _Sum(NamedTuple):
    """What a plan is made for: x, weight, residual and y as [N, C, H, W]."""

    dtype: torch.dtype
    device: int
    pads: tuple[int, ...]
    maps: tuple[Map, ...]


class _Plan(NamedTuple):
    """cuDNN's graph, its tensors in the order x, weight, residual, bias, y, and the bytes it works in."""

    graph: Any
    tensors: tuple[Any, ...]
    workspace: int


def conv_add(x: Tensor, weight: Tensor, residual: Tensor, bias: Tensor | None, pads: Sequence[int], y: Tensor) -> None:
    """y = conv2d(x_nchw, zeros around) + residual + bias, the bias in x's type, which is all that the engines take.

    Raises Unsupported before anything is written.
    """
    check(x, weight, residual, bias, y)
    at = tuple(Map(tuple(t.shape), t.stride()) for t in (x, weight, residual, y))
    found = _plan(_Sum(x.dtype, x.device.index, tuple(pads), at))
    if isinstance(found, str):
        raise Unsupported(found)
    assert bias is not None
    with torch.cuda.device(x.device):
        workspace = torch.empty(found.workspace, dtype=torch.uint8, device=x.device)
        given = dict(zip(found.tensors, (x, weight, residual, bias.to(x.dtype).contiguous(), y), strict=True))
        found.graph.execute(given, workspace, handle=handle(x.device))


def check(x: Tensor, weight: Tensor, residual: Tensor, bias: Tensor | None, y: Tensor) -> None:
    """Raise Unsupported for what no engine takes, whatever the sizes."""
    reason = missing()
    if reason:
        raise Failed(reason)
    if bias is None:
        raise Unsupported("no bias")
    maps = (x, weight, residual, y)
    if x.dtype not in (torch.bfloat16, torch.float16) or any(t.dtype != x.dtype or t.device != x.device for t in maps):
        raise Unsupported(f"maps of {x.dtype}, or of unlike type or device")
    if any(t.stride(1) != 1 or t.shape[1] % _ALIGNED or t.data_ptr() % _ALIGNED for t in maps):
        raise Unsupported("channels that are not innermost, or not in multiples of 16")
    if any(t.numel() >= MOST for t in maps):
        raise Unsupported("maps of 2^31 elements or more")
    if y.untyped_storage().data_ptr() == residual.untyped_storage().data_ptr():
        raise Unsupported("a sum that is written over the residual")  # which is to be whole while this can fail


@lru_cache(maxsize=1024)
def _plan(wanted: _Sum) -> _Plan | str:
    """The first of cuDNN's suggestions, or why there is none."""
    try:
        import cudnn
    except Exception as error:  # it looks for the library while it is imported
        return f"cuDNN's frontend cannot be loaded: {error}"
    kind = kind_of(wanted.dtype)
    device = torch.device("cuda", wanted.device)
    left, right, top, bottom = wanted.pads
    try:
        graph = new_graph(device, wanted.dtype)
        x, weight, residual = (
            graph.tensor(dim=list(m.shape), stride=list(m.strides), data_type=kind) for m in wanted.maps[:3]
        )
        result = wanted.maps[3]
        channels = result.shape[1]
        each = [channels, 1, channels, channels]
        bias = graph.tensor(dim=[1, channels, 1, 1], stride=each, data_type=kind)
        ones = {"stride": [1, 1], "dilation": [1, 1]}
        made = graph.conv_fprop(image=x, weight=weight, pre_padding=[top, left], post_padding=[bottom, right], **ones)
        y = graph.add(a=graph.add(a=made, b=residual), b=bias)
        y.set_output(True).set_data_type(kind)
        y.set_dim(list(result.shape)).set_stride(list(result.strides))
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A])
        graph.deselect_behavior_notes([cudnn.behavior_note.RUNTIME_COMPILATION])
        graph.deselect_workspace_greater_than(_WORKSPACE)
        graph.check_support()
        graph.build_plans()
        return _Plan(graph, (x, weight, residual, bias, y), max(1, graph.get_workspace_size()))
    except (RuntimeError, ValueError, cudnn.cudnnGraphNotSupportedError) as error:
        return f"cuDNN has no plan: {str(error).strip().splitlines()[0]}"
