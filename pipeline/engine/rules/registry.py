"""The table of rules: which function lowers which ATen operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvae.pipeline.engine.ir.graph import Node
    from tvae.pipeline.engine.ir.program import Op
    from tvae.pipeline.engine.rules.context import Context

Rule = Callable[["Context", "Node"], "Op"]

RULES: dict[str, Rule] = {}
"""Operation name (``conv2d``, without namespace and overload) -> the rule that lowers it."""
CREATES_ROWS: set[str] = set()
"""Operations whose rule also takes operands without rows and gives a result with rows."""


class NoRule(Exception):
    """A rule does not cover this case; the message says which."""


def rule(*names: str, creates_rows: bool = False) -> Callable[[Rule], Rule]:
    """Register a rule for these operations. Rules turn a node with a tiled operand into an Op; ``creates_rows`` marks
    those that take nodes without one, too."""

    def register(fn: Rule) -> Rule:
        for name in names:
            RULES[name] = fn
        CREATES_ROWS.update(names if creates_rows else ())
        return fn

    return register
