"""Convolutions whose workspaces are small, so that plans of memory can leave them out.

cuDNN takes what its own estimate says is fastest, however much memory that works in: a Fourier transform of 512 to 512
channels at 208x120 in float32 works in 129 GiB, and takes 1.4 times as long as the kernel that works in none (H200).
Where the allocator refuses the memory, PyTorch takes cuDNN's next suggestion, and keeps to that for as long as the
thread lives. So the first time that a thread convolves tensors of these shapes, the allocator is held to the result and
little more, for the length of that one call; allocations of other threads in that time are held to the same. Where no
algorithm works in so little, it gets more by steps. Kernels of 16 bits want memory, too: a convolution of 256 to 128
channels turned its operands round in three times its result.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor

from tvae.kernels.library_convolutions import made_by
from tvae.pipeline.engine.run.give_back import give_back
from tvae.pipeline.memory.allocator import allocator_share
from tvae.pipeline.memory.allocator_bytes import allocator_bytes
from tvae.pipeline.memory.convolved_shapes import CONVOLUTIONS

__all__ = ["SmallWorkspaces"]

_log = logging.getLogger("tvae")

_ROOM, _MORE = 24 << 20, 4
"""Bytes beside the result, and how many times that where it is too little."""
_SEGMENT, _PAGE, _SMALL = 20 << 20, 2 << 20, 10 << 20
"""How the allocator takes memory from the device: in so much for what is small, else in multiples of a page."""
_KNOWN = 4096
"""Calls that a thread remembers; PyTorch's own memory of algorithms is as long."""

_thread = threading.local()


class SmallWorkspaces:
    """Convolutions on CUDA devices take algorithms with small workspaces, or work in memory that the block takes
    anyhow. It may be left out where this thread has made the same calls before."""

    def __init__(self, planned: Callable[[], int] = lambda: 0) -> None:
        """planned: tells the bytes that the block takes at most, which may take a while to count."""
        self._planned, self._looked = planned, False

    @contextmanager
    def all(self) -> Iterator[None]:
        """In this block, all of ``library_convolutions``."""
        with made_by(self._made):
            yield

    def _made(self, func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        return _convolved(func, args, kwargs, self._give_back) if args[0].is_cuda else func(*args, **kwargs)

    def _give_back(self, x: Tensor) -> None:
        """What the allocator has to spare is not refused to a workspace: give back what the block has no use for."""
        same = torch._C._get_cudnn_deterministic()  # what is chosen must not go by what the allocator happens to have
        if same or x.dtype in (torch.float32, torch.float64):  # of these some algorithms take more than that
            give_back()
        elif not self._looked:
            self._looked = True
            has = allocator_bytes(x.device)
            spare = has.reserved - has.allocated
            if spare > _ROOM and spare > self._planned() + _ROOM:
                give_back()


def _convolved(
    func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any], give_back: Callable[[Tensor], None]
) -> Tensor:
    known = _thread.__dict__.setdefault("known", set[Hashable]())
    key = func, torch._C._get_cudnn_deterministic(), *(_told(arg) for arg in (*args, *kwargs.values()))
    if key in known or torch.cuda.is_current_stream_capturing():
        return func(*args, **kwargs)
    if len(known) >= _KNOWN:
        known.clear()
    known.add(key)
    x, weight = args[:2]
    with torch.cuda.device(x.device):
        give_back(x)
        result = prod(CONVOLUTIONS[func](*args, **kwargs)) * x.element_size()
        laid_out = sum(t.nbytes for t in (x, weight) if not t.is_contiguous(memory_format=_layout(x, weight)))
        tensors, room = _taken(result) + _taken(laid_out), _ROOM
        while (share := (allocator_bytes(x.device).reserved + tensors + room) / _total(x.device)) < 1.0:
            try:
                with allocator_share(x.device).borrowed(share):
                    return func(*args, **kwargs)
            except RuntimeError as error:  # no memory, or no algorithm that works in so little
                _log.debug("%s of %s works in more than %d MiB: %s", func.__name__, key[1:3], room >> 20, error)
                room *= _MORE
        return func(*args, **kwargs)


def _total(device: torch.device) -> int:
    """Bytes of a card, asked for once by each thread."""
    known = _thread.__dict__.setdefault("totals", dict[torch.device, int]())
    if device not in known:
        known[device] = torch.cuda.mem_get_info(device)[1]
    return known[device]


def _told(arg: Any) -> Hashable:
    """Everything about an argument that cuDNN's choice depends on."""
    if isinstance(arg, Tensor):
        return arg.shape, arg.stride(), arg.dtype, arg.device, arg.data_ptr() % 16
    return tuple(arg) if isinstance(arg, list) else arg


def _layout(x: Tensor, weight: Tensor) -> torch.memory_format:
    """That PyTorch brings both operands in: channels last where one of them has it ("cudnn_conv_suggest_memory_format",
    ATen/native/ConvUtils.h)."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.ndim)
    if last is not None and any(not t.is_contiguous() and t.is_contiguous(memory_format=last) for t in (x, weight)):
        return last
    return torch.contiguous_format


def _taken(size: int) -> int:
    """What the allocator takes from the device for a tensor."""
    if size == 0:
        return 0
    return _SEGMENT if size < _SMALL else -(-size // _PAGE) * _PAGE
