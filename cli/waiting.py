"""How the CPU's threads wait for each other, settled before PyTorch is imported, which asks only then.

By default they spin for a while. Where other processes want the same cores, that takes the time of the thread that is
waited for: on 2 cores, with another process on each, a job took ten times as long. Threads that sleep instead cost 5 %
on an idle machine.
"""

from __future__ import annotations

import os

__all__ = ["wait_asleep"]

_CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables that settle it: OpenMP's own, and those of the libraries that PyTorch comes with."""


def wait_asleep() -> None:
    """Unless the user has chosen otherwise, in one of these variables."""
    if not any(name in os.environ for name in _CHOICES):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
