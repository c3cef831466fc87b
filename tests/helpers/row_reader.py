"""What an op is given while it is held against its oracle: the rows it asked for, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import crop
from tvae.pipeline.engine.ir.program import Op, Read


def reader(op: Op, ops: list[Op], full: dict[int, Tensor], demands: Sequence[tuple[int, int, int]]) -> Read:
    """Gives an op what it asked for, and fails where it reads anything else."""
    allowed: dict[int, tuple[int, int]] = {}
    for id_, lo, hi in demands:
        axis = ops[id_].axis
        assert axis is not None, f"{op.name} demands rows of a whole value"
        assert 0 <= lo < hi <= axis.rows, f"{op.name} demands rows [{lo}, {hi}) of {axis.rows}"
        first, last = allowed.get(id_, (lo, hi))
        allowed[id_] = (min(lo, first), max(hi, last))

    def read(id_: int, lo: int | None = None, hi: int | None = None) -> Tensor:
        assert id_ in op.inputs, f"{op.name} reads {ops[id_].name}, which is not among its inputs"
        axis = ops[id_].axis
        if lo is None or hi is None:
            assert axis is None or id_ in op.whole_reads, f"{op.name} reads all of {ops[id_].name}"
            return full[id_]
        assert axis is not None, f"{op.name} reads rows of a whole value"
        assert id_ in allowed, f"{op.name} reads rows of {ops[id_].name}, of which it demanded none"
        assert allowed[id_][0] <= lo <= hi <= allowed[id_][1], f"{op.name} reads [{lo}, {hi}), not {allowed[id_]}"
        return crop(full[id_], axis, lo, hi)

    return read


def same(got: Tensor, want: Tensor, tolerance: float) -> None:
    """Equal within an absolute and relative tolerance; zero asks for the same bits."""
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False)
