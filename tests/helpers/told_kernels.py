"""Calls of kernels, told before they are made: which operation, and with what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvae.kernels import Kernels

Chain = list[tuple[str, Callable[..., Any]]]


def telling(tell: Callable[..., None]) -> Callable[[Kernels, str], Chain]:
    """In the place of ``Kernels._chain``: each implementation tells of its calls, ``tell(operation, *args)``."""
    real = Kernels._chain

    def told(operation: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            tell(operation, *args)
            return run(*args)

        return call

    def chain(kernels: Kernels, operation: str) -> Chain:
        found = [(level, told(operation, run)) for level, run in real(kernels, operation)]
        kernels._chains[operation] = found
        return found

    return chain
