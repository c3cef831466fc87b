"""The property of ``Op.produce``: the rows that ``run`` gives, where they are wanted, and statistics of just those."""

from __future__ import annotations

import torch
from row_reader import reader, same
from torch import Tensor

from tvae.pipeline.engine.ir.axis import crop, shape_of_rows
from tvae.pipeline.engine.ir.layout import memory_format
from tvae.pipeline.engine.ir.program import Op


def check_produced(
    op: Op, ops: list[Op], full: dict[int, Tensor], rows: tuple[int, int], tolerance: float, *, channels_last: bool
) -> None:
    """``produce`` gives what ``run`` gives, where it was told to, its statistics, and leaves everything else alone."""
    assert op.produce is not None
    assert op.axis is not None
    (lo, hi), want = rows, crop(full[op.id], op.axis, *rows)
    before = {i: full[i].clone() for i in op.inputs}
    read = reader(op, ops, full, op.demand(lo, hi))
    layout = memory_format(len(op.shape), channels_last)
    canvas = torch.full(shape_of_rows(op.shape, op.axis, hi - lo + 2), torch.nan, dtype=op.dtype)
    canvas = canvas.contiguous(memory_format=layout)
    inside = crop(canvas, op.axis, 1, 1 + hi - lo) if op.axis.outer == 1 else None
    for out, stats in ((None, False), (None, True), (inside, False), (inside, True)):
        value, parts = op.produce(read, lo, hi, out, stats)
        same(value, want, tolerance)
        assert out is None or value.data_ptr() == out.data_ptr()
        assert (parts is not None) == stats
        if parts is not None:
            _same_statistics(parts, value)
    assert inside is None or int(canvas.isnan().sum()) == canvas.numel() - inside.numel(), "written beside the rows"
    for i, then in before.items():
        torch.testing.assert_close(full[i], then, rtol=0, atol=0)
    if op.over is not None:
        axis = ops[op.over].axis
        assert axis is not None
        own = crop(full[op.over], axis, lo, hi).clone()

        def over(id_: int, a: int | None = None, b: int | None = None) -> Tensor:
            return own if id_ == op.over else read(id_, a, b)

        value, _ = op.produce(over, lo, hi, own, False)
        same(value, want, tolerance)
        assert value.data_ptr() == own.data_ptr()


def _same_statistics(parts: Tensor, value: Tensor) -> None:
    """The blocks together are count, mean and squared deviations of every channel."""
    count, mean, m2 = parts.unbind(2)
    tolerance = 1e-9 if value.dtype == torch.float64 else 1e-5
    wide, total = value.double().flatten(2), count.sum(1)
    assert torch.equal(total, torch.full_like(total, wide.shape[2]))
    centre = (count * mean).sum(1) / total
    same(centre, wide.mean(2), tolerance)
    spread = (m2 + count * (mean - centre.unsqueeze(1)).square()).sum(1)
    same(spread, (wide - wide.mean(2, keepdim=True)).square().sum(2), tolerance)
