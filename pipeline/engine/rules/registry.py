"""Which rule lowers which ATen operation."""

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


BORN: set[str] = set()
"""Those of them that rows may be born in: the result has rows where no operand has."""


class NoRule(Exception):
    """Raised by a rule for a case it does not cover; the message says which."""


def rule(*names: str, born: bool = False) -> Callable[[Rule], Rule]:
    """Register a rule for these operations: it turns a node with a tiled operand into an Op. born: or one with none,
    whose result has rows."""

    def register(fn: Rule) -> Rule:
        for name in names:
            RULES[name] = fn
        BORN.update(names if born else ())
        return fn

    return register
