"""Sizes as expressions: integers and conditions over the symbols of the input dimensions, in Python's syntax."""

from __future__ import annotations

import ast
import math
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

Sizes = Mapping[str, int]
"""Values of the symbols."""


@dataclass(frozen=True)
class Size:
    """An integer expression over size symbols, such as ``8*s0`` or ``(s0 + 1)//2``."""

    expr: str


_ALLOWED = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Constant, ast.Name, ast.Load, ast.Call),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.USub, ast.UAdd),
    *(ast.Not, ast.And, ast.Or),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)
_FUNCTIONS = {
    **{"min": min, "max": max, "abs": abs, "int": int, "float": float, "round": round},
    **{"trunc": math.trunc, "floor": math.floor, "ceil": math.ceil, "sqrt": math.sqrt},
}
_NAMES: dict[str, Any] = {"__builtins__": {}, **_FUNCTIONS}
"""Names that an expression may use, besides the symbols."""
_LONGEST = 1 << 16
"""Characters of an expression."""
_HIGHEST = 64
"""The highest power of a size."""


@lru_cache(maxsize=65536)
def _compile(expr: str) -> CodeType:
    """Compile an expression. Raises ValueError for anything but arithmetic that takes little time at any size."""
    return _compiled(expr)


@lru_cache(maxsize=4096)
def _compile_all(conditions: tuple[str, ...]) -> CodeType:
    """Compile all conditions as one: a graph has up to hundreds, and is asked about several sizes for every new one.
    Raises ValueError as ``_compile`` does."""
    return _compiled(*dict.fromkeys(conditions))


def _compiled(*expressions: str) -> CodeType:
    try:
        parts = [_arithmetic(expr) for expr in expressions] or [ast.Constant(True)]
        body = parts[0] if len(parts) == 1 else ast.BoolOp(ast.And(), parts)
        return compile(ast.fix_missing_locations(ast.Expression(body)), "<size>", "eval")
    except (SyntaxError, RecursionError, MemoryError, TypeError):
        raise ValueError(f"not a size expression: {reprlib.repr(' and '.join(expressions))}") from None


def _arithmetic(expr: str) -> ast.expr:
    if len(expr) > _LONGEST:
        raise SyntaxError
    tree = ast.parse(expr, mode="eval")
    if not all(_allowed(part) for part in ast.walk(tree)):
        raise SyntaxError
    return tree.body


def _allowed(part: ast.AST) -> bool:
    if isinstance(part, ast.Constant):
        return type(part.value) in (int, float, bool)
    if isinstance(part, ast.Call):
        return isinstance(part.func, ast.Name) and not part.keywords
    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Pow):
        powers = [n.right for n in ast.walk(part) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Pow)]
        return math.prod(map(_exponent, powers)) <= _HIGHEST  # a power of a power multiplies them
    return isinstance(part, _ALLOWED)


def _exponent(right: ast.expr) -> float:
    """Return the largest growth of a power with this exponent."""
    if isinstance(right, ast.UnaryOp) and isinstance(right.op, ast.USub):
        right = right.operand
    value = right.value if isinstance(right, ast.Constant) else None
    return max(1.0, value) if isinstance(value, (int, float)) else math.inf


def evaluate(size: int | Size, sizes: Sizes) -> int:
    """Compute a size. Raises NameError for a symbol without a value, ValueError for anything but arithmetic."""
    if isinstance(size, Size):
        return eval(_compile(size.expr), _NAMES, sizes)
    return size


def symbols(size: int | Size) -> frozenset[str]:
    """Return the symbols that a size depends on. Raises ValueError for anything but arithmetic."""
    return frozenset(_compile(size.expr).co_names) - _FUNCTIONS.keys() if isinstance(size, Size) else frozenset()


def all_hold(guards: Iterable[str], sizes: Sizes) -> bool:
    """True if all conditions hold. One that needs a symbol without a value, or is no arithmetic, does not."""
    try:
        return bool(eval(_compile_all(tuple(guards)), _NAMES, sizes))
    except (NameError, ArithmeticError, ValueError, TypeError):
        return False
