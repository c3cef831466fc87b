"""What PyTorch's allocator keeps for later, back to the driver.

PyTorch gives back that of all devices at once. Memory that work on a device may still use must not go. PyTorch waits
for that work by the stream that asked for the memory. The default stream has no name of its own, and so PyTorch (2.9 to
2.13) waits for the default stream of the current device, wherever the memory is: what a thread gives back while it is
on one device may be in use on another. Nor does the driver wait for copies that come from another device.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["beside", "give_back"]

_thread = threading.local()


@contextmanager
def beside(first: torch.device) -> Iterator[None]:
    """This thread works on a device of its own, on a stream that is not the default one, while another thread works on
    ``first``, perhaps on that device's default stream."""
    _thread.first = first
    try:
        yield
    finally:
        del _thread.first


def give_back() -> None:
    """On all CUDA devices, once no work that they have been given needs it."""
    if torch.cuda.device_count() < 2:
        torch.cuda.empty_cache()
        return
    here = torch.cuda.current_device()
    for other in range(torch.cuda.device_count()):
        if other != here and torch.cuda.memory_reserved(other):
            torch.cuda.synchronize(other)
    with torch.cuda.device(getattr(_thread, "first", here)):
        torch.cuda.empty_cache()
