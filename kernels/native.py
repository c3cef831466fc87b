"""Level 1: the definitions, in PyTorch operations. Every faster level must give these numbers."""

from __future__ import annotations

from tvae.kernels.operations import OPERATIONS, operation_of

__all__ = ["IMPLEMENTATIONS", "missing"]

IMPLEMENTATIONS = {name: operation_of(name).definition for name in OPERATIONS}
"""Operation -> its definition."""


def missing() -> str | None:
    """Why this level cannot run on this machine: never."""
    return None
