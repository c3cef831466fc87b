"""What every refusal of a rule must be: by name, in one line, and exact when the operation runs whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from one_op import CPU, OneOp, execute_strips

from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.errors import UnsupportedOp

__all__ = ["Build", "refused_and_exact"]

Build = Callable[[OneOp], Ref]
"""Makes the operation that is refused."""


def refused_and_exact(why: str, build: Build, height: int = 7) -> None:
    """why: a word of the reason."""
    g = OneOp(height, 3)
    g.gives(build(g))
    with pytest.raises(UnsupportedOp, match=why) as caught:
        lower(g.graph, g.sizes, CPU)
    assert caught.value.module == "block.0"
    assert "\n" not in str(caught.value)
    assert "allow_whole" in str(caught.value)
    for strip in (1, 4, 6):
        execute_strips(lower(g.graph, g.sizes, CPU, allow_whole=True), g, strip)
