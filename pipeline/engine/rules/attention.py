"""Attention: a strip owns its queries and reads every key and value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tvae.kernels import functional
from tvae.kernels.partial_attention import PartialAttention, merge, partial_attention, partial_bytes, traffic_bytes
from tvae.kernels.token_rows import in_rows
from tvae.kernels.workspace import attends, attention_bytes
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Chunked, Demand, More, Op, Read
from tvae.pipeline.engine.rules.attention_memory import (
    at_once,
    copied,
    is_rounded,
    of_masked_rows,
    of_rows,
    of_samples,
    of_wide_rows,
    of_wide_samples,
)
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import NoRule, rule


@rule("scaled_dot_product_attention")
def attention(ctx: Context, node: Node) -> Op:
    """softmax(q·kᵀ·scale + mask)·v; rows of q (and of the mask) are tiled, k and v are whole reads."""
    args = (*node.args, *[None] * 7)
    q, k, v = (ctx.op(a) for a in args[:3])
    mask = ctx.maybe(args[3] if args[3] is not None else node.kwargs.get("attn_mask"))
    causal = args[5] or node.kwargs.get("is_causal", False)
    extra = {key: ctx.value(val) for key, val in node.kwargs.items() if key in ("scale", "enable_gqa")}
    tokens = len(q.shape) - 2
    if q.axis is None and not ctx.row_dims(node.meta):  # learned queries that look at all of the picture
        scores = math.prod(q.shape[:-1]) * k.shape[-2] * torch.float32.itemsize
        return ctx.put(ctx.whole(node, barrier=True), work=_work(q, k), workspace=lambda _: scores)
    if q.axis is None:
        raise NoRule("its keys are divided into strips, and its queries are not")
    if q.axis.dim < tokens:  # the rows are in the batch: every row attends for itself

        def call(value: Callable[[int], Any]) -> Tensor:
            bias = None if mask is None else value(mask.id)
            queries, keys, values = (value(x.id) for x in (q, k, v))
            if not is_rounded(q, k):  # what is widened is laid in rows then
                queries, keys, values = (_in_rows(x) for x in (queries, keys, values))
            return _by_samples((queries, keys, values), bias, is_causal=causal, **extra)

        return ctx.local(node, q.axis, call=call, workspace=of_samples(ctx, q, k, v))
    if q.axis.dim != tokens:
        raise NoRule("its rows are in the features")
    if causal:
        return _causal(ctx, node, (q, k, v), extra)
    if mask is not None and mask.axis and mask.axis.dim != len(mask.shape) - 2:
        raise NoRule("its mask has rows along the keys")
    tiled_mask = mask is not None and mask.axis is not None and mask.axis.rows > 1
    if tiled_mask and mask is not None and mask.axis and not mask.axis.same_rows(q.axis):
        raise NoRule(f"its mask merges the rows in another way than its queries ({mask.axis}; {q.axis})")

    def run(read: Read, a: int, b: int) -> Tensor:
        bias = None if mask is None else read(mask.id, a, b) if tiled_mask else read(mask.id)
        queries, keys, values = (_in_rows(x) for x in (read(q.id, a, b), read(k.id), read(v.id)))
        return _attended((queries, keys, values), bias, **extra)

    def demand(a: int, b: int) -> list[Demand]:
        return [(q.id, a, b)] + ([(mask.id, a, b)] if mask is not None and tiled_mask else [])

    whole = [o.id for o in (k, v) if o.axis]
    if mask is not None and mask.axis and not tiled_mask:
        whole.append(mask.id)
    inputs, work = [q, k, v, *([mask] if mask else [])], _work(q, k)
    chunked = None
    if mask is None and not extra.get("enable_gqa") and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:

        def heads(x: Tensor) -> Tensor:
            return x.reshape(-1, 1, *x.shape[-2:])

        scale = extra.get("scale") or q.shape[-1] ** -0.5
        chunked = _chunked(ctx, q, k, v, scale, 1, heads, lambda x: x.view(*q.shape[:-2], *x.shape[-2:]))
    more: More = {"work": work, "chunked": chunked, "workspace": of_rows(ctx, q, k, v)}
    return ctx.emit(node, inputs, q.axis, demand, run, whole_reads=tuple(whole), **more)


def _causal(ctx: Context, node: Node, operands: tuple[Op, Op, Op], extra: dict[str, Any]) -> Op:
    """Each token sees those before it and itself."""
    q, k, v = operands
    axis = q.axis
    assert axis is not None

    def run(read: Read, a: int, b: int) -> Tensor:
        at = torch.arange(axis.outer * axis.rows * axis.inner, device=ctx.device)
        mine = at.view(axis.outer, axis.rows, axis.inner)[:, a:b].reshape(-1, 1)
        seen = k.shape[-2] if axis.outer > 1 else min(k.shape[-2], b * axis.inner)
        keys, values = (_in_rows(read(o.id))[..., :seen, :] for o in (k, v))
        mask = mine >= torch.arange(seen, device=ctx.device)
        return _attended((_in_rows(read(q.id, a, b)), keys, values), mask, **extra)

    whole = tuple(dict.fromkeys(o.id for o in (k, v) if o.axis))
    more: More = {"work": _work(q, k), "workspace": of_masked_rows(ctx, q, k, v)}
    return ctx.emit(node, [q, k, v], axis, lambda a, b: [(q.id, a, b)], run, whole_reads=whole, **more)


@rule("wide_attention")
def wide_attention(ctx: Context, node: Node) -> Op:
    """One head over tokens (frames, height, width): each frame's queries see the keys of its own and earlier frames."""
    q, k, v = (ctx.op(a) for a in node.args[:3])
    scale, frames = ctx.value(node.args[3:])
    kernels, axis = ctx.kernels, q.axis
    if axis is None:
        raise NoRule("its keys are divided into strips, and its queries are not")
    if axis.dim == 0:
        return ctx.local(node, axis, workspace=of_wide_samples(ctx, q, k, v))
    by_frames = frames > 1 and axis.outer == 1
    if axis.dim != 2 or not (frames == 1 or by_frames or axis.outer == frames):
        raise NoRule("its rows are in the features, or in other frames than those of the mask")
    inner, tokens = axis.inner, q.shape[2] // frames  # tokens of a row, of a frame

    def by_frame(x: Tensor) -> Tensor:
        return x.squeeze(1).unflatten(1, (frames, -1))

    def as_tokens(x: Tensor) -> Tensor:
        return x.flatten(1, 2).unsqueeze(1)

    def of_rows(read: Read, a: int, b: int) -> Tensor:
        """A band of rows of every frame."""
        rows, keys, values = (by_frame(t) for t in (read(q.id, a, b), read(k.id), read(v.id)))
        return as_tokens(kernels.wide_attention(rows, keys, values, scale, frames > 1))

    def of_frames(read: Read, a: int, b: int) -> Tensor:
        """Whole frames, or some of their rows: each sees a prefix of the keys."""
        queries, keys, values = read(q.id, a, b), read(k.id), read(v.id)
        begin, end = a * inner, b * inner
        found = []
        for frame in range(begin // tokens, -(-end // tokens)):
            lo, hi, seen = max(begin, frame * tokens), min(end, (frame + 1) * tokens), (frame + 1) * tokens
            part = queries[:, :, lo - begin : hi - begin]
            found.append(kernels.wide_attention(part, keys[:, :, :seen], values[:, :, :seen], scale, False))
        return torch.cat(found, 2)

    whole = tuple(o.id for o in (k, v) if o.axis)
    work = _work(q, k) * (frames + 1) / (2 * frames)
    run = of_frames if by_frames else of_rows
    more: More = {"work": work, "chunked": _chunked(ctx, q, k, v, scale, frames, by_frame, as_tokens)}
    plainly, beside = of_wide_rows(ctx, q, k, v), copied(ctx, q, k, v)
    fused = attends(q.dtype.itemsize, k.shape[2], v.shape[-1]) and kernels.levels["wide_attention"] != "native"
    if ctx.device.type == "cuda" and fused:
        together = inner * (axis.outer if frames == 1 else 1)  # under a mask one frame after the other
        sizes = v.shape[2:]
        more["workspace"] = lambda rows: max(beside(rows) + attention_bytes(rows * together, *sizes), plainly(rows))
    else:
        more["workspace"] = plainly
    return ctx.emit(node, [q, k, v], axis, lambda a, b: [(q.id, a, b)], run, whole_reads=whole, **more)


def _by_samples(qkv: tuple[Tensor, Tensor, Tensor], bias: Tensor | None, **extra: Any) -> Tensor:
    """Each sample's and head's attention, as many at a time as a CUDA grid has places for, or as is widened at once."""
    q, k, v = qkv
    dim, most = at_once(q, k, v)
    if q.shape[dim] <= most:
        return _attended(qkv, bias, **extra)
    result = q.new_empty(*q.shape[:-1], v.shape[-1])
    for a in range(0, q.shape[dim], most):
        count = min(most, q.shape[dim] - a)
        own = bias
        if bias is not None and bias.ndim >= q.ndim - dim and bias.shape[dim - q.ndim] > 1:
            own = bias.narrow(dim - q.ndim, a, count)
        some = q.narrow(dim, a, count), k.narrow(dim, a, count), v.narrow(dim, a, count)
        result.narrow(dim, a, count).copy_(_attended(some, own, **extra))
    return result


def _attended(qkv: tuple[Tensor, Tensor, Tensor], bias: Tensor | None, **extra: Any) -> Tensor:
    q, k, v = qkv
    if q.ndim == 3:  # PyTorch's kernels that do not hold all weights take four dimensions
        shared = bias.unsqueeze(1) if bias is not None and bias.ndim == 3 else bias
        return _attended((q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)), shared, **extra).squeeze(1)
    if not is_rounded(q, k):
        return functional.scaled_dot_product_attention(q, k, v, bias, **extra)
    q_wide, k_wide, v_wide = (x.to(torch.float32, memory_format=torch.contiguous_format) for x in qkv)
    if bias is not None and bias.is_floating_point():
        bias = bias.float()
    return functional.scaled_dot_product_attention(q_wide, k_wide, v_wide, bias, **extra).to(q.dtype)


def _in_rows(x: Tensor) -> Tensor:
    """Tokens as PyTorch's kernels read them: a token's features lie together, and heads at multiples of that.

    A buffer with channels last has one head at a step of one, or heads within a token: its kernels refuse the first
    ("no kernel found to launch"), and the second goes a way that holds all weights at once.
    """
    x = in_rows(x)
    return x.squeeze(-3).unsqueeze(-3) if x.ndim > 3 and x.shape[-3] == 1 else x


def _chunked(
    ctx: Context,
    q: Op,
    k: Op,
    v: Op,
    scale: float,
    frames: int,
    apart: Callable[[Tensor], Tensor],
    joined: Callable[[Tensor], Tensor],
) -> Chunked | None:
    """Keys and values a few rows at a time. apart: tokens -> [B, T, tokens, width]; joined: the way back."""
    if q.axis is None or k.axis is None or v.axis is None or q.id in (k.id, v.id):
        return None
    if not k.axis.same_rows(v.axis) or k.axis.dim != len(k.shape) - 2 or (frames > 1 and k.axis.outer != frames):
        return None
    heads, depth = math.prod(q.shape[:-2]), max(q.shape[-1], v.shape[-1])
    per_query, per_key = q.axis.outer * q.axis.inner, k.axis.outer * k.axis.inner

    def partial(read: Read, a: int, b: int, first: int, last: int) -> PartialAttention:
        keys, values = apart(read(k.id, first, last)), apart(read(v.id, first, last))
        return partial_attention(apart(read(q.id, a, b)), keys, values, scale, frames > 1)

    def workspace(rows: int, seen: int) -> int:
        return partial_bytes(ctx.device, q.dtype, heads, rows * per_query, seen * per_key, depth)

    def traffic(rows: int, seen: int) -> int:
        return traffic_bytes(q.dtype, heads, rows * per_query, seen * per_key)

    return Chunked((k.id, v.id), partial, merge, lambda acc: joined(acc[0].to(q.dtype)), workspace, traffic)


def _work(q: Op, k: Op) -> float:
    """Operations of both products of an attention."""
    return 4.0 * math.prod(q.shape) * k.shape[-2]
