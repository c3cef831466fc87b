"""How long a call takes on the current GPU: what ways to compute one thing are compared by."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["milliseconds"]

_TRIALS = 3


def milliseconds(call: Callable[[], Tensor]) -> float:
    """Mean of a few calls after a first one."""
    call()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(_TRIALS):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / _TRIALS
