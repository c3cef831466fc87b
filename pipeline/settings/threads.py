"""How many threads compute on a CPU: those that the work keeps busy, so that the others are free for the rest of a job.

PyTorch divides every operation among its threads, and waits for the last of them. Built-in VAE, encode, 16 cores (in
milliseconds, and in those of all cores together): 64x64 takes 11.8 (12) with 1 thread and 16.2 (72) with 16, 128x128
23.8 (55) with 4 and 23.6 (135) with 16, 256x256 60.9 (164) with 4 and 44.4 (324) with 16.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

__all__ = ["computing_with", "kept_busy"]

_WORK = 30e6
"""Multiplications and additions of an operation, for each thread that it keeps busy."""


def kept_busy(work: Iterable[float], most: int) -> int:
    """How many threads, 1 to ``most``. work: of each operation; what only moves data has none, and does not count."""
    heavy = [each for each in work if each]
    return max(1, min(most, round(sum(heavy) / len(heavy) / _WORK))) if heavy else 1


@contextmanager
def computing_with(threads: int) -> Iterator[None]:
    """For the length of a call, what this thread computes is divided among so many."""
    before = torch.get_num_threads()
    if threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
