"""What the sweep asks of a cell's memory and time."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """What a cell is held to. peak: times the plan that the peak may be; plan: times the peak that the plan may be;
    room: bytes that either may be off besides: cuBLAS alone keeps 32 MiB for each of two streams. seconds: beyond
    ``times`` the untiled model's first call. warm: times that call, that the last of several may take where memory is
    not limited, and a fiftieth of ``seconds``."""

    exact: float = 1e-5
    peak: float = 1.08
    plan: float = 1.25
    room: int = 64 << 20
    times: float = 3.0
    seconds: float = 5.0
    warm: float = 2.0
