"""PyTorch's current CUDA device and stream, which a run asks for hundreds of times.

``torch.cuda.current_device`` asks each time whether CUDA was started; who asks here has a tensor on a GPU already.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["device", "stream"]

device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
"""The number of the current device."""
stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda _device: 0)
"""The address of a device's current stream."""
