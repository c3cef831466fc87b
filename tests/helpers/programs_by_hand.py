"""Programs built by hand, lowered and executed in strips of any height."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from one_op import CPU, OneOp, image
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.ir.program import Op, Program
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.schedule import Schedule
from tvae.pipeline.engine.run.execute import execute

__all__ = ["HEIGHT", "executed", "layouts", "lowered", "named", "places", "right", "same_numbers", "started", "strips"]

HEIGHT = 9
STRIPS = (1, 2, 4, HEIGHT)
strips = pytest.mark.parametrize("strip", STRIPS)
places = pytest.mark.parametrize("place", ["host", "disk"])
layouts = pytest.mark.parametrize("channels_last", [False, True], ids=["plain", "channels-last"])


def same_numbers(got: Sequence[Tensor | None], want: Sequence[Tensor | None]) -> bool:
    """Alike but for the last bits of float64: a library may add up otherwise where a result lies elsewhere."""
    pairs = list(zip(got, want, strict=True))
    return all(a is not None and b is not None and torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in pairs)


def started(n: int = 1) -> tuple[OneOp, Ref]:
    g = OneOp(HEIGHT, 5)
    return g, image(g, 4, n)


def lowered(g: OneOp) -> Program:
    return lower(g.graph, g.sizes, CPU)


def named(program: Program, name: str) -> list[Op]:
    return [op for op in program.ops if op.name == name]


def executed(plan: Schedule, g: OneOp, **how: Any) -> list[Tensor | None]:
    return execute(plan, g.inputs(), g.weights, channels_last=g.channels_last, **how)


def right(results: Sequence[Tensor | None], g: OneOp) -> None:
    for got, out in zip(results, g.graph.outputs, strict=True):
        torch.testing.assert_close(got, g.values[out], rtol=1e-9, atol=1e-9)
