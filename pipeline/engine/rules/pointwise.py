"""Operations that treat every position alike: output rows [a, b) need rows [a, b) of the operands."""

from __future__ import annotations

import math

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.layout import dense
from tvae.pipeline.engine.ir.op_facts import is_turned
from tvae.pipeline.engine.ir.program import More, Op
from tvae.pipeline.engine.ir.wide_copy import copied
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
    """The axis of a broadcast result: that of the operand with most rows, its dimension counted from the last."""
    ndim = len(node.meta.shape)
    axes = [o.axis.moved(o.axis.dim + ndim - len(o.shape)) for o in ctx.operands(node) if o.axis]
    return max(axes, key=lambda a: a.rows)


@rule(*_ARITHMETIC.split(), *_ACTIVATIONS.split(), *_ROUNDING.split(), *_LOGIC.split(), *_COPIES.split())
def pointwise(ctx: Context, node: Node) -> Op:
    """Elementwise with broadcasting. One varying operand: cheaper to do again than to store."""
    axis, operands = broadcast_axis(ctx, node), ctx.operands(node)
    if axis.rows > 1 and len({d for o in operands if (d := _place(o, axis)) is not None}) > 1:
        return _pairs(ctx, node, axis, operands)
    return ctx.local(node, axis, cheap=sum(not o.constant for o in operands) == 1, aligned=True)


@rule("clone")
def clone(ctx: Context, node: Node) -> Op:
    """A copy, which is made where it is to be kept."""
    source = ctx.op(node.args[0])
    assert source.axis is not None
    return ctx.local(node, source.axis, cheap=True, into=lambda read, a, b, out: copied(out, read(source.id, a, b)))


def _place(op: Op, axis: Axis) -> int | None:
    """The dimension of an operand's rows, counted from the last; None if it has not these rows."""
    return op.axis.dim - len(op.shape) if op.axis is not None and op.axis.same_rows(axis) else None


def _pairs(ctx: Context, node: Node, axis: Axis, operands: list[Op]) -> Op:
    """Rows of one operand beside those of another (positions of queries and of keys): the former are divided."""
    ndim = len(node.meta.shape)
    front = min(d for o in operands if (d := _place(o, axis)) is not None)
    rows = [o.id for o in operands if _place(o, axis) == front]
    if any(o.axis is None and len(o.shape) >= -front and o.shape[front] != 1 for o in operands):
        raise NoRule("one operand has the height and is not divided into strips")
    if any(
        o.axis is not None and o.id not in rows and len(o.shape) >= -front and o.shape[front] != 1 for o in operands
    ):
        raise NoRule("its operands have their rows in different dimensions")
    whole = tuple(o.id for o in operands if o.axis is not None and o.id not in rows)
    invoke = ctx.call(node)
    return ctx.emit(
        node,
        operands,
        axis.moved(ndim + front),
        lambda a, b: [(i, a, b) for i in rows],
        lambda read, a, b: invoke(lambda i: read(i, a, b) if i in rows else read(i)),
        whole_reads=whole,
    )


@rule("contiguous")
def contiguous(ctx: Context, node: Node) -> Op:
    """Dense rows in the order of the dimensions; dense with the channels innermost is as good, and costs nothing."""
    source = ctx.op(node.args[0])
    assert source.axis is not None
    return ctx.local(node, source.axis, cheap=True, run=lambda read, a, b: dense(read(source.id, a, b)))


@rule("type_as")
def type_as(ctx: Context, node: Node) -> Op:
    """A cast: the second operand gives nothing but its type."""
    source, dtype = ctx.op(node.args[0]), node.meta.dtype
    if source.axis is None:
        return ctx.emit(node, [source], None, lambda a, b: [], lambda read, a, b: read(source.id).to(dtype), cheap=True)
    return ctx.emit(
        node,
        [source],
        source.axis,
        lambda a, b: [(source.id, a, b)],
        lambda read, a, b: read(source.id, a, b).to(dtype),
        cheap=True,
    )


@rule("linear")
def linear(ctx: Context, node: Node) -> Op:
    """Mixes the last dimension; every other is untouched."""
    source = ctx.op(node.args[0])
    more: More = {"work": 2.0 * math.prod(ctx.shape(node.meta)) * ctx.op(node.args[1]).shape[-1]}
    if is_turned(source.name):  # tokens of a map: they are copied, to lie in a row
        more["workspace"] = lambda rows: int(rows * source.row_bytes)
    if source.axis is None or source.axis.dim >= len(source.shape) - 1:
        raise NoRule("its rows are in the features")
    return ctx.local(node, source.axis, call=ctx.call(node, ctx.kernels.linear), **more)


@rule("prelu")
def prelu(ctx: Context, node: Node) -> Op:
    """A slope for each channel, or one for all."""
    source = ctx.op(node.args[0])
    if source.axis is None or (source.axis.dim == 1 and math.prod(ctx.op(node.args[1]).shape) > 1):
        raise NoRule("its rows are in the channels")
    return ctx.local(node, source.axis)


@rule("glu")
def glu(ctx: Context, node: Node) -> Op:
    """One half of a dimension gates the other."""
    source = ctx.op(node.args[0])
    dim = ctx.value(node.args[1]) if len(node.args) > 1 else node.kwargs.get("dim", -1)
    if source.axis is None or dim % len(source.shape) == source.axis.dim:
        raise NoRule("rows gate rows")
    return ctx.local(node, source.axis)


@rule("channel_shuffle")
def channel_shuffle(ctx: Context, node: Node) -> Op:
    """Channels in another order."""
    source = ctx.op(node.args[0])
    if source.axis is None or source.axis.dim == 1:
        raise NoRule("its rows are in the channels")
    return ctx.local(node, source.axis, cheap=True)


@rule("addmm")
def addmm(ctx: Context, node: Node) -> Op:
    """A product of rows with a matrix, and a bias."""
    bias, left, right = (ctx.op(a) for a in node.args[:3])
    if left.axis is None or left.axis.dim != 0 or right.axis is not None:
        raise NoRule("a matrix product with rows elsewhere than in the first operand's first dimension")
    if bias.axis is None and len(bias.shape) == 2 and bias.shape[0] != 1:
        raise NoRule("one operand has the height and is not divided into strips")
    work = 2.0 * math.prod(left.shape) * right.shape[1]
    return ctx.local(node, left.axis, work=work)


@rule("embedding")
def embedding(ctx: Context, node: Node) -> Op:
    """Looks up a row of the table for every index; the indices carry the rows."""
    indices = ctx.op(node.args[1])
    if indices.axis is None or ctx.op(node.args[0]).axis is not None:
        raise NoRule("its table is divided into strips, or its indices are not")
    return ctx.local(node, indices.axis)


@rule("cdist", "_cdist_forward", "_euclidean_dist")
def cdist(ctx: Context, node: Node) -> Op:
    """Distances of every (tiled) row of the first operand to every row of the second."""
    source, codes = ctx.op(node.args[0]), ctx.op(node.args[1])
    if source.axis is None or codes.axis is not None or source.axis.dim != len(source.shape) - 2:
        raise NoRule("it needs rows in the second-last dimension of the first operand, and none in the second operand")
    return ctx.local(node, source.axis)


@rule("batch_norm")
def batch_norm(ctx: Context, node: Node) -> Op:
    """With running statistics (inference) it is an affine map per channel."""
    if ctx.value(node.args[5]):
        raise NoRule("batch normalisation with the batch's own statistics (is the model in eval mode?)")
    source = ctx.op(node.args[0])
    assert source.axis is not None
    return ctx.local(node, source.axis)
