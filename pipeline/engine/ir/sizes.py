"""Sizes as expressions: integers and conditions over the symbols of the input dimensions, in Python's syntax."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

__all__ = ["Size", "Sizes", "all_hold", "evaluate"]

Sizes = Mapping[str, int]
"""Values of the symbols."""


@dataclass(frozen=True)
class Size:
    """An integer expression over size symbols, such as ``8*s0`` or ``(s0 + 1)//2``."""

    expr: str


_ALLOWED = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Constant, ast.Name, ast.Load, ast.Call),
    *(
        ast.Add,
        ast.Sub,
        ast.Mult,
        ast.Div,
        ast.FloorDiv,
        ast.Mod,
        ast.Pow,
        ast.USub,
        ast.UAdd,
        ast.Not,
        ast.And,
        ast.Or,
    ),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)
_FUNCTIONS = {
    **{"min": min, "max": max, "abs": abs, "int": int, "float": float, "round": round},
    **{"trunc": math.trunc, "floor": math.floor, "ceil": math.ceil, "sqrt": math.sqrt},
}


@lru_cache(maxsize=65536)
def _compile(expr: str) -> CodeType:
    try:
        tree = ast.parse(expr, mode="eval")
    except SyntaxError:
        raise ValueError(f"not a size expression: {expr!r}") from None
    for part in ast.walk(tree):
        if not isinstance(part, _ALLOWED) or (isinstance(part, ast.Call) and not isinstance(part.func, ast.Name)):
            raise ValueError(f"not a size expression: {expr!r}")
    return compile(tree, "<size>", "eval")


def evaluate(size: int | Size, sizes: Sizes) -> int:
    """The integer a size stands for. Raises NameError for a symbol without a value, ValueError for no arithmetic."""
    if isinstance(size, Size):
        return eval(_compile(size.expr), _names(sizes))
    return size


def all_hold(guards: Iterable[str], sizes: Sizes) -> bool:
    """Are all of these conditions true? One that needs a symbol without a value, or is no arithmetic, is not."""
    try:
        names = _names(sizes)
        return all(eval(_compile(guard), names) for guard in dict.fromkeys(guards))
    except (NameError, ZeroDivisionError, ValueError):
        return False


def _names(sizes: Sizes) -> dict[str, Any]:
    """All that an expression may use."""
    return {"__builtins__": {}, **_FUNCTIONS, **sizes}
