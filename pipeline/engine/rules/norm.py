"""Normalisation: statistics over all rows (a barrier) or per pixel, then a map per channel and the activation.

The statistics are folded over owned rows only, each row exactly once, and merged in float64, so that they do not depend
on how the rows are divided. Where the op that makes the rows can take them on its way, they cost no read. The map that
follows is an ordinary local op.
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
from tvae.pipeline.engine.rules.context import Context, no_demand
from tvae.pipeline.engine.rules.reduce import by_statistics, spread
from tvae.pipeline.engine.rules.registry import NoRule, rule
from tvae.pipeline.engine.rules.window import padded

_MOST_BYTES = 4 << 20
"""Statistics that wait for the end block by block take at most this. A GPU's kernels make some 500 blocks a strip: 64
strips of 512 channels would take 400 MiB, and twice that while they are joined."""


@rule("group_norm")
def group_norm(ctx: Context, node: Node) -> Op:
    """(x - mean)/sqrt(var + eps)·weight + bias per group of channels, statistics over all rows."""
    args: list[Any] = [*node.args, *[None] * 5]
    x, groups, w, b, eps = args[:5]
    return _normalised(ctx, node, ctx.op(x), groups, w, b, 1e-5 if eps is None else eps)


@rule("instance_norm")
def instance_norm(ctx: Context, node: Node) -> Op:
    """A group norm of one channel a group; with running statistics an affine map per channel."""
    x, w, b, _mean, _var, uses_input_stats, _momentum, eps, *_ = node.args
    source = ctx.op(x)
    if not uses_input_stats:
        assert source.axis is not None
        return ctx.local(node, source.axis)
    return _normalised(ctx, node, source, source.shape[1], w, b, eps)


@rule("batch_norm")
def batch_norm(ctx: Context, node: Node) -> Op:
    """With running statistics (inference) it is an affine map per channel."""
    if ctx.value(node.args[5]):
        raise NoRule("batch normalisation with the batch's own statistics (is the model in eval mode?)")
    return ctx.local(node, ctx.tiled(node.args[0])[1])


@rule("norm_act")
def norm_act(ctx: Context, node: Node) -> Op:
    """A group norm of x + offset, followed by the activation (see ``fused_ops.norm_act``)."""
    x, groups, w, b, eps, offset, act = node.args
    return _normalised(ctx, node, ctx.op(x), groups, w, b, eps, offset, act)


@rule("norm_pad")
def norm_pad(ctx: Context, node: Node) -> Op:
    """``norm_act`` with borders around it: the normalised map is written once, borders included."""
    x, groups, w, b, eps, offset, act, amounts, mode = node.args
    (source, axis), kernels = ctx.tiled(x), ctx.kernels
    if axis.dim == 0:
        return ctx.local(node, axis)
    affine = norm_map(ctx, node, source, groups, w, b, eps, offset)

    def pad_rows(read: Read, lo: int, hi: int, borders: list[int]) -> Tensor:
        return kernels.pad(read(source.id, lo, hi), borders, mode, read(affine.id), act)

    op = padded(ctx, node, [source, affine], list(amounts), mode, pad_rows)
    if ctx.is_plain("pad"):  # the definition writes the map before it has borders
        return ctx.replace(op, workspace=lambda rows: int(rows * source.row_bytes), packs=ctx.packs(source))
    return op


@rule("rms_norm_act")
def rms_norm_act(ctx: Context, node: Node) -> Op:
    """RMS normalisation of every pixel by itself."""
    source, axis = ctx.tiled(node.args[0])
    if axis.dim == 1:
        raise NoRule("its rows are merged with the channels")
    earlier_frames = ctx.maybe(node.args[7]) if len(node.args) > 7 else None
    if earlier_frames is None:
        return ctx.local(node, axis, cheap=True, takes_out=True)
    if axis.dim == 2:
        raise NoRule("its rows are the frames that others come before")
    copied = ctx.is_plain("rms_norm_act")  # the definition makes the frames, and copies them after the earlier ones
    more: More = {"workspace": lambda rows: int(rows * source.row_bytes) if copied else 0}
    return ctx.local(node, axis, takes_out=True, **more)


def _normalised(
    ctx: Context, node: Node, source: Op, groups: int, w: Any, b: Any, eps: float, offset: Any = None, act: Any = None
) -> Op:
    """Emit a group norm: statistics (unless the rows are in the batch, where each row has its own), and the map."""
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
    """Emit the map per channel of a group normalisation, from statistics over all rows."""
    axis, kernels = source.axis, ctx.kernels
    assert axis is not None
    if axis.dim == 1:
        raise NoRule("its rows are merged with the channels")

    def fold(acc: Any, read: Read, a: int, b: int) -> Any:
        return take(acc, kernels.group_stats(read(source.id, a, b)))

    def take(acc: Any, blocks: Tensor) -> Any:
        waiting = [*(acc or []), blocks]
        # a rehearsal never has many, and must build the merge, too
        many = sum(p.nbytes for p in waiting) > _MOST_BYTES or asked() is not None
        return [part(waiting)] if len(waiting) > 1 and many else waiting

    def part(acc: list[Tensor]) -> Tensor:
        return kernels.merge_stats(finish(acc))

    def finish(acc: list[Tensor]) -> Tensor:
        return acc[0] if len(acc) == 1 else joined(acc)

    more: More = {}
    if source.produce is None and source.kind == "call":
        more |= {"produce": _with_stats(source, kernels), "indirect": True}
    if ctx.is_plain("add_stats"):
        more["workspace"] = _stats_workspace(source, ctx.device)
    source = ctx.replace(source, **more) if more else source
    batch, channels = source.shape[:2]
    shared = ctx.shared_ops("group_stats", "finish_stats")
    if shared and shared[0].inputs == (source.id,) and shared[1].shape == (2, batch, channels):
        ctx.ops += shared
        return shared[1]
    reduction = Reduction(source.id, fold, finish, take, part, take)
    shape = (batch, 1, 3, channels)
    stats = ctx.reduce(node, [source], reduction, name="group_stats", shape=shape, dtype=torch.float64)
    operands = [ctx.maybe(t) for t in (w, b, offset)]
    ids = [None if o is None else o.id for o in operands]

    def run(read: Read, _a: int, _b: int) -> Tensor:
        values = (None if i is None else read(i) for i in ids)
        return norm_affine(kernels, read(stats.id), source.dtype, groups, eps, *values)

    kind = torch.float64 if source.dtype == torch.float64 else torch.float32
    inputs, affine_shape = [stats, *(o for o in operands if o)], (2, batch, channels)
    return ctx.emit(node, inputs, None, no_demand, run, name="finish_stats", shape=affine_shape, dtype=kind)


def _stats_workspace(source: Op, device: torch.device) -> Callable[[int], int]:
    """Return the bytes that computing rows of a value and their statistics takes."""
    before, row_elements = source.workspace, int(source.row_bytes) // source.dtype.itemsize
    return lambda rows: max(before(rows), stats_bytes(rows * row_elements, source.dtype, device))


def _with_stats(source: Op, kernels: Kernels) -> Produce:
    """Return a ``produce`` that takes the statistics of a value on its way into the buffer."""
    run = source.run

    def produce(read: Read, a: int, b: int, out: Tensor | None, stats: bool) -> tuple[Tensor, Tensor | None]:
        return kernels.add_stats(run(read, a, b), None, None, out, stats)

    return produce


@rule("layer_norm", "rms_norm")
def trailing_norm(ctx: Context, node: Node) -> Op:
    """Normalises the trailing dimensions given by its second argument."""
    source, over = ctx.op(node.args[0]), len(node.args[1])
    if source.axis is None:
        raise NoRule("its weights have rows, and what it normalises has none")
    if source.axis.dim < len(source.shape) - over:
        return ctx.local(node, source.axis)
    centred = node.op == "layer_norm"
    names = ("weight", "bias", "eps") if centred else ("weight", "eps")
    arguments = dict(zip(names, node.args[2:], strict=False)) | node.kwargs
    if arguments.get("weight") is not None or arguments.get("bias") is not None:
        raise NoRule("its weights have rows")
    eps = arguments.get("eps")
    if eps is None:
        eps = 1e-5 if centred else torch.finfo(torch.promote_types(node.meta.dtype, torch.float32)).eps

    def scaled(rows: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        return (rows - mean) * scale if centred else rows * scale

    dims = list(range(len(source.shape) - over, len(source.shape)))
    fold, variance = spread(source, dims, True, 0.0, root=False)

    def finish(acc: Any) -> Tensor:
        _, mean, _ = acc
        squares = variance(acc) + (0.0 if centred else mean.square())
        return torch.stack([mean, (squares + float(eps)).rsqrt()])

    return by_statistics(ctx, node, source, dims, "norm_stats", (fold, finish), scaled)
