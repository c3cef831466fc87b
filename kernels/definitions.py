"""Runs at level ``native`` alone, whatever levels a preset chose: kernels of those are still being built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["definitions", "definitions_alone"]

_alone: ContextVar[bool] = ContextVar("tvae_definitions", default=False)


@contextmanager
def definitions() -> Iterator[None]:
    """Meanwhile every operation that this thread calls is at level ``native``."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def definitions_alone() -> bool:
    """Is this thread within ``definitions``?"""
    return _alone.get()
