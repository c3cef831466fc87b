"""Refuses to read memory by strides where a value is not all of its memory, in the order of its dimensions.

A graph knows values, not where they lie: in strips, or with channels last, they lie elsewhere than in the model.
"""

from __future__ import annotations

from typing import Any

from tvae.pipeline.engine.ir.resolve import STRIDED
from tvae.pipeline.errors import UnsupportedOp

__all__ = ["check_strides"]


def check_strides(name: str, node: Any, module: str) -> None:
    """name: without namespace and overload. node: the exporter's. Raises UnsupportedOp."""
    if name not in STRIDED:
        return
    x = node.args[0].meta["val"]
    whole = x.is_contiguous() and bool(x.storage_offset() == 0)
    if not (whole and bool(x.untyped_storage().nbytes() == x.numel() * x.element_size())):
        why = "it reads memory by strides, of a value that does not lie in the order of its dimensions"
        raise UnsupportedOp(str(node.target), module, why, whole=False)
