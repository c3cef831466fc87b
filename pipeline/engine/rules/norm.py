"""Normalisation: statistics over all rows (a barrier) or per pixel, then a map per channel and the activation.

The statistics are folded over owned rows only, each row exactly once, and merged in float64, so that they do not depend
on how the rows are divided; where the op that makes the rows can take them on its way, they cost no read. What is
done with them is an ordinary local op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tvae.kernels import Kernels
from tvae.kernels.prebuild import asked
from tvae.kernels.statistics import joined, stats_bytes
from tvae.pipeline.engine.ir.fused_ops import norm_affine
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import More, Op, Produce, Read, Reduction
from tvae.pipeline.engine.rules.context import Context, no_demand, no_rows
from tvae.pipeline.engine.rules.registry import NoRule, rule
from tvae.pipeline.engine.rules.window import padded

_MOST_BYTES = 4 << 20
"""Of statistics that wait for the end block by block. A GPU's kernels take some 500 blocks a strip: of 64 strips of 512
channels they would be 400 MiB, and twice that while they are joined."""


@rule("group_norm")
def group_norm(ctx: Context, node: Node) -> Op:
    """(x - mean)/sqrt(var + eps)·weight + bias per group of channels, statistics over all rows."""
    args: list[Any] = [*node.args, *[None] * 5]
    x, groups, w, b, eps = args[:5]
    return _normalised(ctx, node, ctx.op(x), groups, w, b, 1e-5 if eps is None else eps)


@rule("instance_norm")
def instance_norm(ctx: Context, node: Node) -> Op:
    """Every channel a group of its own; with running statistics an affine map per channel."""
    x, w, b, _mean, _var, own, _momentum, eps, *_ = node.args
    source = ctx.op(x)
    if not own:
        assert source.axis is not None
        return ctx.local(node, source.axis)
    return _normalised(ctx, node, source, source.shape[1], w, b, eps)


@rule("norm_act")
def norm_act(ctx: Context, node: Node) -> Op:
    """The same of x + offset, followed by the activation (see ``fused_ops.norm_act``)."""
    x, groups, w, b, eps, offset, act = node.args
    return _normalised(ctx, node, ctx.op(x), groups, w, b, eps, offset, act)


@rule("norm_pad")
def norm_pad(ctx: Context, node: Node) -> Op:
    """The same with borders around it: the normalised map is written once, borders and all."""
    x, groups, w, b, eps, offset, act, amounts, mode = node.args
    source, kernels = ctx.op(x), ctx.kernels
    assert source.axis is not None
    if source.axis.dim == 0:
        return ctx.local(node, source.axis)
    affine = norm_map(ctx, node, source, groups, w, b, eps, offset)

    def around(read: Read, lo: int, hi: int, borders: list[int]) -> Tensor:
        return kernels.pad(read(source.id, lo, hi), borders, mode, read(affine.id), act)

    op = padded(ctx, node, [source, affine], list(amounts), mode, around)
    if ctx.is_plain("pad"):  # which writes the map before it has borders
        return ctx.put(op, workspace=lambda rows: int(rows * source.row_bytes), packs=ctx.packs(source))
    return op


@rule("rms_norm_act")
def rms_norm_act(ctx: Context, node: Node) -> Op:
    """Every pixel is normalised by itself."""
    source = ctx.op(node.args[0])
    assert source.axis is not None
    if source.axis.dim == 1:
        raise NoRule("its rows are merged with the channels")
    before = ctx.maybe(node.args[7]) if len(node.args) > 7 else None
    if before is None:
        return ctx.local(node, source.axis, cheap=True, takes_out=True)
    if source.axis.dim == 2:
        raise NoRule("its rows are the frames that others come before")
    copied = ctx.is_plain("rms_norm_act")  # the frames are made, and then put after the others
    more: More = {"workspace": lambda rows: int(rows * source.row_bytes) if copied else 0}
    return ctx.local(node, source.axis, takes_out=True, **more)


def _normalised(
    ctx: Context, node: Node, source: Op, groups: int, w: Any, b: Any, eps: float, offset: Any = None, act: Any = None
) -> Op:
    axis, kernels = source.axis, ctx.kernels
    assert axis is not None
    if axis.dim == 0:  # rows in the batch: every row has its own statistics
        return ctx.local(node, axis)
    affine = norm_map(ctx, node, source, groups, w, b, eps, offset)

    def run(read: Read, a: int, b: int) -> Tensor:
        return kernels.norm_act(read(source.id, a, b), read(affine.id), act)

    packs = ctx.packs(source) if ctx.is_plain("norm_act") else None
    return ctx.emit(
        node, [source, affine], axis, lambda a, b: [(source.id, a, b)], run, name="norm_act", cheap=True, packs=packs
    )


def norm_map(ctx: Context, node: Node, source: Op, groups: int, w: Any, b: Any, eps: float, offset: Any = None) -> Op:
    """The map per channel that a group normalisation is, from statistics over all rows."""
    axis, kernels = source.axis, ctx.kernels
    assert axis is not None
    if axis.dim == 1:
        raise NoRule("its rows are merged with the channels")

    def fold(acc: Any, read: Read, a: int, b: int) -> Any:
        return take(acc, kernels.group_stats(read(source.id, a, b)))

    def take(acc: Any, parts: Tensor) -> Any:
        found = [*(acc or []), parts]
        # a rehearsal never has many, and is to ask for the merge
        many = sum(p.nbytes for p in found) > _MOST_BYTES or asked() is not None
        return [part(found)] if len(found) > 1 and many else found

    def part(acc: list[Tensor]) -> Tensor:
        return kernels.merge_stats(finish(acc))

    def finish(acc: list[Tensor]) -> Tensor:
        return acc[0] if len(acc) == 1 else joined(acc)

    more: More = {}
    if source.produce is None and source.kind == "call":
        more |= {"produce": _with_stats(source, kernels), "indirect": True}
    if ctx.is_plain("add_stats"):
        more["workspace"] = _workspace(source, ctx.device)
    source = ctx.put(source, **more) if more else source
    batch, channels = source.shape[:2]
    again = ctx.again("group_stats", "finish_stats")
    if again and again[0].inputs == (source.id,) and again[1].shape == (2, batch, channels):
        ctx.ops += again
        return again[1]
    stats = ctx.emit(
        node,
        [source],
        None,
        lambda a, b: [(source.id, a, b)],
        no_rows,
        name="group_stats",
        shape=(batch, 1, 3, channels),
        dtype=torch.float64,
        reduction=Reduction(source.id, fold, finish, take, part, take),
    )
    given = [ctx.maybe(t) for t in (w, b, offset)]
    read_given = [None if o is None else o.id for o in given]

    def finished(read: Read, _a: int, _b: int) -> Tensor:
        values = (None if i is None else read(i) for i in read_given)
        return norm_affine(kernels, read(stats.id), source.dtype, groups, eps, *values)

    shape, kind = (2, batch, channels), torch.float64 if source.dtype == torch.float64 else torch.float32
    inputs = [stats, *(o for o in given if o)]
    return ctx.emit(node, inputs, None, no_demand, finished, name="finish_stats", shape=shape, dtype=kind)


def _workspace(source: Op, device: torch.device) -> Callable[[int], int]:
    """Of computing rows of a value and their statistics."""
    before, a_row = source.workspace, int(source.row_bytes) // source.dtype.itemsize
    return lambda rows: max(before(rows), stats_bytes(rows * a_row, source.dtype, device))


def _with_stats(source: Op, kernels: Kernels) -> Produce:
    """What is stored anyway gives its statistics on the way into the buffer."""
    run = source.run

    def produce(read: Read, a: int, b: int, out: Tensor | None, stats: bool) -> tuple[Tensor, Tensor | None]:
        return kernels.add_stats(run(read, a, b), None, None, out, stats)

    return produce
