"""A copy of this process that can compute."""

from __future__ import annotations

import os

import torch

__all__ = ["process_copy"]


def process_copy() -> int:
    """``os.fork()``. OpenMP's threads do not come along: where this process has computed with several, the copy would
    wait for them for ever, and so it computes with one."""
    process = os.fork()
    if process == 0:
        torch.set_num_threads(1)
    return process
