"""cuDNN's Python frontend, by which plans are reached that PyTorch does not ask for: what its users share."""

from __future__ import annotations

import threading
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

__all__ = ["MOST", "Map", "handle", "kind_of", "missing", "new_graph"]

MOST = 2**31
"""Elements of a map that the engines count in 32 bits."""

_handles = threading.local()


class Map(NamedTuple):
    """A tensor without its memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


@cache
def missing() -> str | None:
    """Why the frontend cannot be used on this machine, or None."""
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return "no NVIDIA GPU"
    return None if find_spec("cudnn") else "nvidia-cudnn-frontend is not installed"


def kind_of(dtype: torch.dtype) -> Any:
    """cuDNN's name for a type."""
    import cudnn

    return {torch.bfloat16: cudnn.data_type.BFLOAT16, torch.float16: cudnn.data_type.HALF}[dtype]


def new_graph(device: torch.device, dtype: torch.dtype) -> Any:
    """A graph without operations, for maps of this type; it computes in float32."""
    import cudnn

    return cudnn.pygraph(
        handle=handle(device),
        io_data_type=kind_of(dtype),
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
    )


def handle(device: torch.device) -> Any:
    """This thread's handle, set to the stream that its work goes to."""
    import cudnn

    if not hasattr(_handles, "of"):
        _handles.of = {}
    if device.index not in _handles.of:
        _handles.of[device.index] = cudnn.create_handle()
    handle = _handles.of[device.index]
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream(device).cuda_stream)
    return handle
