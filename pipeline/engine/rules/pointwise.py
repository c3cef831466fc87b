"""Operations that treat every position alike: output rows [a, b) need rows [a, b) of the operands."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.layout import copy_into, dense
from tvae.pipeline.engine.ir.program import Op, Read
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import NoRule, rule

_ARITHMETIC = (
    "add sub mul div rsub pow square sqrt rsqrt reciprocal exp log abs neg sin cos "
    "maximum minimum fmax fmin clamp clamp_min clamp_max addcmul addcdiv lerp "
    "tan asin acos atan sinh cosh asinh acosh atanh erf erfc exp2 expm1 log2 log10 log1p sinc "
    "atan2 hypot fmod remainder floor_divide logaddexp xlogy copysign complex polar "
    "angle deg2rad erfinv heaviside lgamma logaddexp2 logit"
)

_ACTIVATIONS = (
    "relu silu gelu elu mish sigmoid tanh softplus leaky_relu hardtanh hardswish relu6 "
    "selu celu hardsigmoid log_sigmoid softshrink hardshrink threshold"
)

_ROUNDING = "round floor ceil trunc frac sign sgn signbit nan_to_num isnan isinf isneginf isposinf isfinite"


_LOGIC = (
    "lt le gt ge eq ne where logical_and logical_or logical_xor logical_not masked_fill "
    "bitwise_and bitwise_or bitwise_xor bitwise_not __and__ __or__ __xor__ __lshift__ __rshift__ "
    "bitwise_left_shift bitwise_right_shift"
)

_COPIES = (
    "to _to_copy alias detach dropout feature_dropout alpha_dropout feature_alpha_dropout "
    "expand_as zeros_like ones_like full_like lift_fresh_copy"
)


def broadcast_axis(ctx: Context, node: Node) -> Axis:
    """Return the axis of a broadcast result: that of the operand with most rows, its dimension counted from the
    last."""
    ndim = len(node.meta.shape)
    axes = [o.axis.moved(o.axis.dim + ndim - len(o.shape)) for o in ctx.operands(node) if o.axis]
    return max(axes, key=lambda a: a.rows)


@rule(*_ARITHMETIC.split(), *_ACTIVATIONS.split(), *_ROUNDING.split(), *_LOGIC.split(), *_COPIES.split())
def pointwise(ctx: Context, node: Node) -> Op:
    """Elementwise with broadcasting. With one varying operand it is cheaper to compute again than to store."""
    axis, operands = broadcast_axis(ctx, node), ctx.operands(node)
    if axis.rows > 1 and len({d for o in operands if (d := _place(o, axis)) is not None}) > 1:
        return _pairs(ctx, node, axis, operands)
    return ctx.local(node, axis, cheap=sum(not o.constant for o in operands) == 1, aligned=True)


def _place(op: Op, axis: Axis) -> int | None:
    """Return the dimension of an operand's rows, counted from the last; None if it does not have these rows."""
    return op.axis.dim - len(op.shape) if op.axis is not None and op.axis.same_rows(axis) else None


def _pairs(ctx: Context, node: Node, axis: Axis, operands: list[Op]) -> Op:
    """Combine rows of one operand with those of another (positions of queries and of keys). The former are divided."""
    ndim = len(node.meta.shape)
    front = min(d for o in operands if (d := _place(o, axis)) is not None)
    rows = [o.id for o in operands if _place(o, axis) == front]
    others = [o for o in operands if o.id not in rows and len(o.shape) >= -front and o.shape[front] != 1]
    if any(o.axis is None for o in others):
        raise NoRule("one operand has the height and is not divided into strips")
    if others:
        raise NoRule("its operands have their rows in different dimensions")
    invoke, ids = ctx.call(node), [o.id for o in operands]

    def fn(*values: Tensor) -> Tensor:
        result: Tensor = invoke(dict(zip(ids, values, strict=True)).__getitem__)
        return result

    return ctx.mixed(node, operands, [i in rows for i in ids], axis.moved(ndim + front), fn)


@rule("clone")
def clone(ctx: Context, node: Node) -> Op:
    """A copy, made directly in the memory where it is kept."""
    source, axis = ctx.tiled(node.args[0])
    return ctx.local(node, axis, cheap=True, into=lambda read, a, b, out: copy_into(out, read(source.id, a, b)))


@rule("contiguous")
def contiguous(ctx: Context, node: Node) -> Op:
    """Dense rows in the order of the dimensions; dense with the channels innermost is as good, and costs nothing."""
    source, axis = ctx.tiled(node.args[0])
    return ctx.map_rows(node, source, axis, dense)


@rule("type_as")
def type_as(ctx: Context, node: Node) -> Op:
    """A cast to the second operand's type."""
    source, dtype = ctx.op(node.args[0]), node.meta.dtype
    return ctx.map_rows(node, source, source.axis, lambda t: t.to(dtype))


@rule("view_as_complex")
def view_as_complex(ctx: Context, node: Node) -> Op:
    """Pairs along the last dimension become complex numbers."""
    source, axis = ctx.tiled(node.args[0])
    if axis.dim == len(source.shape) - 1:
        raise NoRule("its rows are the pairs")
    return ctx.map_rows(node, source, axis, lambda t: torch.view_as_complex(t.contiguous()))


@rule("view_as_real")
def view_as_real(ctx: Context, node: Node) -> Op:
    """Complex numbers become pairs along a new last dimension."""
    source, axis = ctx.tiled(node.args[0])
    return ctx.map_rows(node, source, axis, lambda t: torch.view_as_real(t.resolve_conj()))


@rule("prelu")
def prelu(ctx: Context, node: Node) -> Op:
    """A slope for each channel, or one for all."""
    source = ctx.op(node.args[0])
    if source.axis is None or (source.axis.dim == 1 and math.prod(ctx.op(node.args[1]).shape) > 1):
        raise NoRule("its rows are in the channels")
    return ctx.local(node, source.axis)


@rule("glu")
def glu(ctx: Context, node: Node) -> Op:
    """Gates one half of a dimension by the other."""
    source = ctx.op(node.args[0])
    dim = ctx.value(node.args[1]) if len(node.args) > 1 else node.kwargs.get("dim", -1)
    if source.axis is None or dim % len(source.shape) == source.axis.dim:
        raise NoRule("rows gate rows")
    return ctx.local(node, source.axis)


@rule("channel_shuffle")
def channel_shuffle(ctx: Context, node: Node) -> Op:
    """Reorders the channels."""
    source = ctx.op(node.args[0])
    if source.axis is None or source.axis.dim == 1:
        raise NoRule("its rows are in the channels")
    return ctx.local(node, source.axis, cheap=True)


@rule("tril", "triu")
def triangle(ctx: Context, node: Node) -> Op:
    """The part below (above) a diagonal of queries and keys. A strip of queries meets the diagonal further along."""
    source = ctx.op(node.args[0])
    axis, queries = source.axis, len(source.shape) - 2
    assert axis is not None
    if axis.dim == queries + 1 or (axis.dim == queries and axis.outer != 1):
        raise NoRule("a triangular mask whose rows are in the keys, or are merged with frames")
    diagonal = ctx.value(node.args[1]) if len(node.args) > 1 else node.kwargs.get("diagonal", 0)
    cut = torch.tril if node.op == "tril" else torch.triu
    shifts = axis.dim == queries

    def run(read: Read, a: int, b: int) -> Tensor:
        return cut(read(source.id, a, b), diagonal + a * axis.inner * shifts)

    return ctx.local(node, axis, cheap=True, run=run)
