"""Quotients of sizes that are rounded up or down: whole numbers throughout, as ``-(-n // s)`` and ``n // s`` are.

Models compute padding that way (``ceil(n / s)``). As a rounded fraction it is an expression of which the exporter
cannot tell that it is ``n`` where s is 1, and each layer's size is then a longer one than that of the layer before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tvae.pipeline.engine.capture.in_thread import instead

__all__ = ["whole_quotients"]


@contextmanager
def whole_quotients() -> Iterator[None]:
    """In this thread ``ceil`` and ``floor`` of a size over a whole number are divisions of whole numbers."""
    quotients: dict[int, tuple[Any, Any, Any]] = {}
    sizes: Any = torch.SymInt
    numbers: Any = torch.SymFloat
    divide, ceil, floor = sizes.__truediv__, numbers.__ceil__, numbers.__floor__

    def divided(size: Any, by: Any) -> Any:
        result = divide(size, by)
        if isinstance(result, torch.SymFloat) and isinstance(by, int | torch.SymInt) and not isinstance(by, bool):
            quotients[id(result)] = result, size, by  # the quotient is kept, so that no id comes twice
        return result

    def up(number: Any) -> Any:
        _, size, by = quotients.get(id(number), (None, None, None))
        return ceil(number) if size is None else -(-size // by)

    def down(number: Any) -> Any:
        _, size, by = quotients.get(id(number), (None, None, None))
        return floor(number) if size is None else size // by

    with (
        instead(sizes, "__truediv__", divided),
        instead(numbers, "__ceil__", up),
        instead(numbers, "__floor__", down),
    ):
        yield
