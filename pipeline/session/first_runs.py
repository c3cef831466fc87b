"""Runs that begin while kernels are being built, on a machine or with a model that is new.

Building takes seconds, and the operations that a kernel stands for are there in PyTorch as well. Those take more time
and memory, so that only brief runs with room to spare do without the kernels; all others wait for them. So do clips:
cuDNN may search for the algorithms of their convolutions, which takes longer than building kernels.
"""

from __future__ import annotations

import logging
from functools import cache

import torch

from tvae.kernels.prebuild import under_way, wait_for_all
from tvae.pipeline.memory.limits import Limits, unused_bytes
from tvae.pipeline.session.choose_plan import ChosenPlan

__all__ = ["takes_definitions"]

_PATIENCE = 0.25
"""Seconds that any run waits: kernels that were built before are read in less."""
_BRIEF = 1.0
"""Seconds of a run with its kernels."""
_TIMES = 4
"""As much memory as its plan's such a run may take: a fused operation is several maps without its kernel."""
_log = logging.getLogger("tvae")


def takes_definitions(plan: ChosenPlan, limits: Limits, device: torch.device) -> bool:
    """Is a run of this plan, now, to take PyTorch's own operations instead of kernels that are not built yet?"""
    if limits.wait_for_kernels or limits.vram is not None or not under_way():
        return False
    program = plan.schedule.program
    if any(len(program.ops[i].shape) != 4 for i in program.inputs):
        return False
    room = unused_bytes(device)
    if room is None or _TIMES * plan.bytes > limits.share * room or plan.seconds > _BRIEF:
        return False
    if wait_for_all(_PATIENCE):
        return False
    _tell()
    return True


@cache
def _tell() -> None:
    _log.info("kernels are being built: PyTorch's own operations compute until they are there")
