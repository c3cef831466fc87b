"""What PyTorch's allocator keeps for later, back to the driver.

PyTorch gives back that of all devices at once, and first waits for the streams that asked for it. But every device has
a default stream, and PyTorch 2.11 waits for the current device's, also where the memory is another device's, whose work
may still use it. Nor does the driver wait for copies that come from another device.
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
