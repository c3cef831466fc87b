"""Attention: a strip owns its queries and reads every key and value.

The second half counts the bytes that attention takes besides its operands and its result, for plans. Results of 16
bits of wide heads are added up in float32. With few keys, 16 bits are computed in float32 as a whole. Operands whose
tokens do not lie in rows are copied (see ``_in_rows``).
"""

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
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import NoRule, rule

MOST_SAMPLES = 65535
"""Samples in one call: PyTorch's kernels have one for each place of a grid's second or third dimension (CUDA C++
Programming Guide, technical specifications)."""
_NARROW = 128
"""Features of a head that PyTorch's kernel keeps in registers."""
_FEW_KEYS, _WIDENED = 256, 64 << 20
"""With at most so many keys, 16 bits are computed in float32, about so many bytes at a time. PyTorch's kernels round
the weights to 16 bits, all in one direction where they are nearly equal. Its plain way does not, and the model takes
that where its operands lie in memory in another way than ours: the error was 1.06 times as large (measured, 3 and 17
keys)."""
Bytes = Callable[[int], int]
"""Maps a number of rows of the queries to bytes."""


@rule("scaled_dot_product_attention")
def attention(ctx: Context, node: Node) -> Op:
    """softmax(q·kᵀ·scale + mask)·v; rows of q (and of the mask) are tiled, k and v are whole reads."""
    args = (*node.args, *[None] * 7)
    q, k, v = (ctx.op(a) for a in args[:3])
    mask = ctx.maybe(args[3] if args[3] is not None else node.kwargs.get("attn_mask"))
    causal = args[5] or node.kwargs.get("is_causal", False)
    extra = {key: ctx.value(val) for key, val in node.kwargs.items() if key in ("scale", "enable_gqa")}
    tokens = len(q.shape) - 2
    if q.axis is None and not ctx.row_dims(node.meta):  # learned queries that see all of the picture
        scores = math.prod(q.shape[:-1]) * k.shape[-2] * torch.float32.itemsize
        return ctx.replace(ctx.whole(node, barrier=True), work=_work(q, k), workspace=lambda _: scores)
    if q.axis is None:
        raise NoRule("its keys are divided into strips, and its queries are not")
    if q.axis.dim < tokens:  # the rows are in the batch: every row attends for itself

        def call(value: Callable[[int], Any]) -> Tensor:
            bias = None if mask is None else value(mask.id)
            queries, keys, values = (value(x.id) for x in (q, k, v))
            if not _is_rounded(q, k):  # widening lays operands in rows
                queries, keys, values = (_in_rows(x) for x in (queries, keys, values))
            return _by_samples((queries, keys, values), bias, is_causal=causal, **extra)

        return ctx.local(node, q.axis, call=call, workspace=_bytes_of_samples(ctx, q, k, v))
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
    more: More = {"work": work, "chunked": chunked, "workspace": _bytes_of_rows(ctx, q, k, v)}
    return ctx.emit(node, inputs, q.axis, demand, run, whole_reads=tuple(whole), **more)


def _causal(ctx: Context, node: Node, operands: tuple[Op, Op, Op], extra: dict[str, Any]) -> Op:
    """Emit attention in which each token sees those before it and itself."""
    q, k, v = operands
    axis = q.axis
    assert axis is not None

    def run(read: Read, a: int, b: int) -> Tensor:
        positions = torch.arange(axis.outer * axis.rows * axis.inner, device=ctx.device)
        own_positions = positions.view(axis.outer, axis.rows, axis.inner)[:, a:b].reshape(-1, 1)
        seen = k.shape[-2] if axis.outer > 1 else min(k.shape[-2], b * axis.inner)
        keys, values = (_in_rows(read(o.id))[..., :seen, :] for o in (k, v))
        mask = own_positions >= torch.arange(seen, device=ctx.device)
        return _attended((_in_rows(read(q.id, a, b)), keys, values), mask, **extra)

    whole = tuple(dict.fromkeys(o.id for o in (k, v) if o.axis))
    more: More = {"work": _work(q, k), "workspace": _bytes_of_masked_rows(ctx, q, k, v)}
    return ctx.emit(node, [q, k, v], axis, lambda a, b: [(q.id, a, b)], run, whole_reads=whole, **more)


@rule("wide_attention")
def wide_attention(ctx: Context, node: Node) -> Op:
    """Attention of a single head over tokens (frames, height, width). Each frame's queries see the keys of its own and
    earlier frames."""
    q, k, v = (ctx.op(a) for a in node.args[:3])
    scale, frames = ctx.value(node.args[3:])
    kernels, axis = ctx.kernels, q.axis
    if axis is None:
        raise NoRule("its keys are divided into strips, and its queries are not")
    if axis.dim == 0:
        return ctx.local(node, axis, workspace=_bytes_of_wide_samples(ctx, q, k, v))
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
        results = []
        for frame in range(begin // tokens, -(-end // tokens)):
            lo, hi, seen = max(begin, frame * tokens), min(end, (frame + 1) * tokens), (frame + 1) * tokens
            part = queries[:, :, lo - begin : hi - begin]
            results.append(kernels.wide_attention(part, keys[:, :, :seen], values[:, :, :seen], scale, False))
        return torch.cat(results, 2)

    whole = tuple(o.id for o in (k, v) if o.axis)
    work = _work(q, k) * (frames + 1) / (2 * frames)
    run = of_frames if by_frames else of_rows
    more: More = {"work": work, "chunked": _chunked(ctx, q, k, v, scale, frames, by_frame, as_tokens)}
    plain_bytes, copied_bytes = _bytes_of_wide_rows(ctx, q, k, v), _copied_bytes(ctx, q, k, v)
    fused = attends(q.dtype.itemsize, k.shape[2], v.shape[-1]) and kernels.levels["wide_attention"] != "native"
    if ctx.device.type == "cuda" and fused:
        together = inner * (axis.outer if frames == 1 else 1)  # under a mask one frame after the other
        sizes = v.shape[2:]
        more["workspace"] = lambda rows: max(
            copied_bytes(rows) + attention_bytes(rows * together, *sizes), plain_bytes(rows)
        )
    else:
        more["workspace"] = plain_bytes
    return ctx.emit(node, [q, k, v], axis, lambda a, b: [(q.id, a, b)], run, whole_reads=whole, **more)


def _by_samples(qkv: tuple[Tensor, Tensor, Tensor], bias: Tensor | None, **extra: Any) -> Tensor:
    """Compute each sample's and head's attention, as many at a time as a CUDA grid has places for, or as one widens."""
    q, k, v = qkv
    dim, most = _at_once(q, k, v)
    if q.shape[dim] <= most:
        return _attended(qkv, bias, **extra)
    result = q.new_empty(*q.shape[:-1], v.shape[-1])
    for a in range(0, q.shape[dim], most):
        count = min(most, q.shape[dim] - a)
        part_bias = bias
        if bias is not None and bias.ndim >= q.ndim - dim and bias.shape[dim - q.ndim] > 1:
            part_bias = bias.narrow(dim - q.ndim, a, count)
        part = q.narrow(dim, a, count), k.narrow(dim, a, count), v.narrow(dim, a, count)
        result.narrow(dim, a, count).copy_(_attended(part, part_bias, **extra))
    return result


def _attended(qkv: tuple[Tensor, Tensor, Tensor], bias: Tensor | None, **extra: Any) -> Tensor:
    q, k, v = qkv
    if q.ndim == 3:  # PyTorch's kernels that do not hold all weights take four dimensions
        shared = bias.unsqueeze(1) if bias is not None and bias.ndim == 3 else bias
        return _attended((q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)), shared, **extra).squeeze(1)
    if not _is_rounded(q, k):
        return functional.scaled_dot_product_attention(q, k, v, bias, **extra)
    q_wide, k_wide, v_wide = (x.to(torch.float32, memory_format=torch.contiguous_format) for x in qkv)
    if bias is not None and bias.is_floating_point():
        bias = bias.float()
    return functional.scaled_dot_product_attention(q_wide, k_wide, v_wide, bias, **extra).to(q.dtype)


def _in_rows(x: Tensor) -> Tensor:
    """Lay tokens out as PyTorch's kernels read them: a token's features together, and heads at multiples of that.

    A buffer with channels last has one head at a step of one, or heads within a token. The kernels refuse the first
    ("no kernel found to launch"), and the second takes a path that holds all weights at once.
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
    """Return how to attend to keys and values a few rows at a time.

    Args:
        apart: tokens -> [B, T, tokens, width].
        joined: its inverse.
    """
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
    """Count the operations of both products of an attention."""
    return 4.0 * math.prod(q.shape) * k.shape[-2]


def _is_rounded(q: Op | Tensor, k: Op | Tensor) -> bool:
    """True if PyTorch's kernels would round the weights of few keys."""
    return q.dtype.itemsize == 2 and k.shape[-2] <= _FEW_KEYS


def _at_once(q: Op | Tensor, k: Op | Tensor, v: Op | Tensor) -> tuple[int, int]:
    """Return a dimension of samples or heads, and how many places of it go in one call."""
    shared = [dim for dim in range(len(q.shape) - 2) if q.shape[dim] == k.shape[dim] == v.shape[dim]] or [0]
    if _is_rounded(q, k):
        dim = max(shared, key=lambda dim: q.shape[dim])
        return dim, min(MOST_SAMPLES, max(1, _WIDENED // -(-_widened_bytes(q, k, v) // q.shape[dim])))
    return next((dim for dim in shared if q.shape[dim] > MOST_SAMPLES), shared[0]), MOST_SAMPLES


def _bytes_of_samples(ctx: Context, q: Op, k: Op, v: Op) -> Bytes:
    """Count the bytes of attention whose rows are in the batch: every row attends for itself."""
    axis = q.axis
    assert axis is not None
    samples, places = axis.outer * axis.inner, q.shape[axis.dim]
    plain_bytes, widened = _bytes_of_wide_samples(ctx, q, k, v), -(-_widened_bytes(q, k, v) // places)
    sample_bytes = math.prod(q.shape[:-1]) * v.shape[-1] // places * q.dtype.itemsize

    def pieces(rows: int) -> int:
        if _is_rounded(q, k):
            return min(rows * samples * widened, max(_WIDENED, widened))
        return plain_bytes(rows) + (MOST_SAMPLES * sample_bytes if rows * samples > MOST_SAMPLES else 0)

    return pieces


def _bytes_of_wide_samples(ctx: Context, q: Op, k: Op, v: Op) -> Bytes:
    """Count the bytes of ``wide_attention`` as it is defined, with rows in the batch."""
    copies = 0 if _lies_in_rows(ctx, q) else sum(math.prod(x.shape) for x in (q, k, v)) * q.dtype.itemsize
    a_row = copies // _rows(q)
    return _both(_sums(ctx, q, v), lambda rows: rows * a_row)


def _bytes_of_rows(ctx: Context, q: Op, k: Op, v: Op) -> Bytes:
    """Count the bytes of attention of any number of heads, all keys and values at once."""
    if _is_rounded(q, k):
        return _widened_rows(q, k, v)
    return _bytes_of_wide_rows(ctx, q, k, v)


def _bytes_of_masked_rows(ctx: Context, q: Op, k: Op, v: Op) -> Bytes:
    """Count the bytes of attention under a mask: PyTorch may hold all weights, and the mask."""
    axis = q.axis
    assert axis is not None
    rounded = _is_rounded(q, k)
    per_row = axis.outer * axis.inner * k.shape[-2]
    itemsize = torch.float32.itemsize if rounded else q.dtype.itemsize
    weights = per_row * (math.prod(q.shape[:-2]) * itemsize + 2)
    return _both(lambda rows: rows * weights, _widened_rows(q, k, v) if rounded else _copied_bytes(ctx, q, k, v))


def _bytes_of_wide_rows(ctx: Context, q: Op, k: Op, v: Op) -> Bytes:
    """Count the bytes of ``wide_attention`` as it is defined."""
    return _both(_sums(ctx, q, v), _copied_bytes(ctx, q, k, v))


def _copied_bytes(ctx: Context, q: Op, k: Op, v: Op) -> Bytes:
    """Count the bytes of copies of queries, and of all keys and values, where they may not lie in rows."""
    if _lies_in_rows(ctx, q):
        return lambda rows: 0
    held = (math.prod(k.shape) + math.prod(v.shape)) * q.dtype.itemsize
    a_row = math.prod(q.shape) * q.dtype.itemsize // _rows(q)
    return lambda rows: held + rows * a_row


def _both(one: Bytes, other: Bytes) -> Bytes:
    return lambda rows: one(rows) + other(rows)


def _rows(q: Op) -> int:
    return 1 if q.axis is None else max(1, q.axis.rows)


def _widened_bytes(q: Op | Tensor, k: Op | Tensor, v: Op | Tensor) -> int:
    """Count the bytes of the operands and the result in float32, and of the result in 16 bits."""
    operands, result = sum(math.prod(x.shape) for x in (q, k, v)), math.prod(q.shape[:-1]) * v.shape[-1]
    return (operands + result) * torch.float32.itemsize + result * q.dtype.itemsize


def _widened_rows(q: Op, k: Op, v: Op) -> Bytes:
    """Count the bytes of ``_widened_bytes`` for rows of queries, and for all keys and values."""
    held = math.prod(k.shape) + math.prod(v.shape)
    a_row = -(-(_widened_bytes(q, k, v) - held * torch.float32.itemsize) // _rows(q))
    return lambda rows: held * torch.float32.itemsize + rows * a_row


def _sums(ctx: Context, q: Op, v: Op) -> Bytes:
    """Count the bytes in which PyTorch's kernel for wide heads adds up results of 16 bits on a GPU ("output_accum",
    mem_eff_attention/kernel_forward.h)."""
    wide = ctx.device.type == "cuda" and v.shape[-1] > _NARROW and q.dtype.itemsize == 2
    result = math.prod(q.shape[:-1]) * v.shape[-1] if wide else 0
    a_row = result * torch.float32.itemsize // _rows(q)
    return lambda rows: rows * a_row


def _lies_in_rows(ctx: Context, tokens: Op) -> bool:
    """True if tokens lie in rows. With channels last those of one head do, in a convolution's result and in a
    buffer."""
    return ctx.channels_last and math.prod(tokens.shape[1:-2]) == 1
