"""Operations and nodes are made once."""

from __future__ import annotations

from typing import Any

import torch
from one_op import OneOp, image

from tvae.kernels import Kernels
from tvae.pipeline.engine.ir import program
from tvae.pipeline.engine.ir.program import Op, Program
from tvae.pipeline.engine.lower import lower


def lowered() -> Program:
    g = OneOp(8)
    x = image(g)
    g.gives(g.call("group_norm.default", g.call("silu.default", x), 2))
    return lower(g.graph, g.sizes, torch.device("cpu"), Kernels())


def test_an_operation_does_not_change() -> None:
    """A type checker sees to it, which is told so; what follows from an operation is worked out once."""
    told: dict[str, Any] = program._unchanging.__dataclass_transform__  # type: ignore[attr-defined]
    assert {**told["kwargs"], **told}["frozen_default"]  # of later Pythons, and of 3.11
    assert lowered().ops[-1].row_bytes > 0


def test_a_value_whose_statistics_are_wanted_is_one_operation() -> None:
    """A norm has more to say of what it normalises: no operation is left that does not know."""
    ops = lowered().ops
    named: list[Op] = [op for op in ops if op.name == "silu"]
    assert [op.id for op in ops] == [*range(len(ops))]
    assert len(named) == 1
    assert named[0].produce is not None
    assert named[0].indirect
