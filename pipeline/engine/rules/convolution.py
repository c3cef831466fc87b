"""Convolutions and transposed convolutions: the rows that they see, and how they are computed where PyTorch's own way
is slow, or does not repeat its bits.

A strip inside the image reads its neighbours' rows; the convolution's own padding exists at the true border only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from tvae.kernels import Kernels, functional
from tvae.kernels.columns import column_bytes, has_columns
from tvae.kernels.library_convolutions import conv1d, conv2d, conv_transpose1d, conv_transpose2d, conv_transpose3d
from tvae.pipeline.engine.ir.fused_ops import even_zeros
from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.layout import dense, settle_strides
from tvae.pipeline.engine.ir.program import More, Op, Read
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import NoRule, rule
from tvae.pipeline.engine.rules.window import per_dim, spatial


@rule("conv1d", "conv2d", "conv3d")
def convolution(ctx: Context, node: Node) -> Op:
    """Output row r sees input rows r·stride - padding + [0, (kernel - 1)·dilation]."""
    x, w, b, stride_, padding_, dilation_, groups = (*node.args, *[None] * 7)[:7]
    source, weight, bias = ctx.op(x), ctx.op(w), ctx.maybe(b)
    kernel, dims = weight.shape[2:], len(source.shape) - 2
    stride, dilation = per_dim(ctx.value(stride_), dims, 1), per_dim(ctx.value(dilation_), dims, 1)
    if isinstance(padding_, str):
        total = [d * (k - 1) if padding_ == "same" else 0 for d, k in zip(dilation, kernel, strict=True)]
        before = [n // 2 for n in total]
        padding = even_zeros(before, [n - n // 2 for n in total], stride)
    else:
        before = padding = per_dim(ctx.value(padding_), dims, 0)
    return _convolved(ctx, node, (source, weight, bias), stride, padding, before, dilation, groups or 1)


@rule("uneven_conv")
def uneven_conv(ctx: Context, node: Node) -> Op:
    """A convolution with other zeros before a dimension than after it (see ``fused_ops.uneven_conv``)."""
    x, w, b, stride, before, after, dilation, groups = node.args
    operands = ctx.op(x), ctx.op(w), ctx.maybe(b)
    return _convolved(ctx, node, operands, stride, even_zeros(before, after, stride), before, dilation, groups)


def _convolved(
    ctx: Context,
    node: Node,
    operands: tuple[Op, Op, Op | None],
    stride: list[int],
    padding: list[int],
    before: list[int],
    dilation: list[int],
    groups: int,
) -> Op:
    """Emit a convolution.

    Args:
        padding: of the convolution that is called.
        before: zeros in front of the first window; ``padding`` is this or whole steps more.
    """
    source, weight, bias = operands
    axis, dims = source.axis, len(source.shape) - 2
    assert axis is not None
    if axis.dim == 0:
        return ctx.local(node, axis)
    if axis.dim == 1:
        raise NoRule("its rows are in the channels")
    sp = spatial(axis, 2)
    k, s, p, d, rows = weight.shape[2 + sp], stride[sp], before[sp], dilation[sp], axis.rows
    if padding[sp] > (k - 1) * d:
        raise NoRule("its padding is wider than the kernel: some rows see nothing of the picture")
    conv = convolution_in(dims, ctx.kernels)
    shape = ctx.shape(node.meta)
    windows = zip(source.shape[2:], weight.shape[2:], padding, stride, dilation, strict=True)
    sizes = [(n + 2 * zeros - gap * (k - 1) - 1) // step + 1 for n, k, zeros, step, gap in windows]
    cut = [n for n in range(dims) if n != sp and sizes[n] != shape[2 + n]]

    def span(a: int, b: int) -> tuple[int, int, int, int]:
        """Return the rows that are seen, borders included, and those of them that are read. A strip with the lower
        border alone reads more rows above it, so that the convolution's own padding there is whole steps."""
        lo, hi = a * s - p, (b - 1) * s - p + (k - 1) * d + 1
        return lo, hi, lo - (-p % s) if lo > 0 and hi > rows else max(lo, 0), min(hi, rows)

    def run(read: Read, a: int, b: int) -> Tensor:
        lo, hi, first, last = span(a, b)
        strip, pads = read(source.id, first, last), list(padding)
        taps, shift = read(weight.id), read(bias.id) if bias else None
        inside = lo >= 0 and hi <= rows
        if inside:
            pads[sp] = 0
        y = conv(strip, taps, shift, stride, pads, dilation, groups)
        if not inside:
            # the convolution pads both sides (no copy of the strip); the rows that are not true border are dropped
            y = y.narrow(axis.dim, (lo - (first - pads[sp])) // s, b - a)
        for n in cut:
            y = y.narrow(2 + n, (padding[n] - before[n]) // stride[n], shape[2 + n])
        return dense(y) if cut else y

    inputs = [source, weight, *([bias] if bias else [])]
    work, out = 2.0 * math.prod(weight.shape[1:]) * math.prod(shape), ctx.result_axis(node, axis.dim)
    more: More = {"work": work, "packs": ctx.packs(source)}
    extra = 2 * padding[sp] // s  # rows of its own padding, which are cut off at once
    a_row = math.prod((*shape[:2], *sizes)) // sizes[sp] * node.meta.dtype.itemsize if cut else 0
    if extra_bytes := a_row + _columns_of_row(ctx.device, source, weight, sizes, sp, groups):
        more["workspace"] = lambda rows: (rows + extra) * extra_bytes
    name = f"conv{dims}d"
    return ctx.emit(node, inputs, out, lambda a, b: [(source.id, *span(a, b)[2:])], run, name=name, **more)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(ctx: Context, node: Node) -> Op:
    """Input row i reaches output rows i·stride - padding + [0, (kernel - 1)·dilation]."""
    x, w, b, stride_, padding_, extra_, groups, dilation_ = (*node.args, *[None] * 8)[:8]
    (source, axis), weight, bias = ctx.tiled(x), ctx.op(w), ctx.maybe(b)
    dims = len(source.shape) - 2
    if axis.dim == 0:
        return ctx.local(node, axis)
    if axis.dim == 1:
        raise NoRule("its rows are in the channels")
    sp = spatial(axis, 2)
    stride, padding = per_dim(ctx.value(stride_), dims, 1), per_dim(ctx.value(padding_), dims, 0)
    extra, dilation = per_dim(ctx.value(extra_), dims, 0), per_dim(ctx.value(dilation_), dims, 1)
    k, s, p, d, rows = weight.shape[2 + sp], stride[sp], padding[sp], dilation[sp], axis.rows
    extra[sp] = 0  # output_padding only adds rows at the far end, which the span below covers
    conv = CONV_T[dims]

    def span(a: int, b: int) -> tuple[int, int]:
        # a kernel smaller than the stride leaves rows between two inputs that neither reaches: begin with the one above
        first = min(max(0, min(-(-(a + p - (k - 1) * d) // s), (a + p) // s)), rows - 1)
        return first, max(min(rows, (b - 1 + p) // s + 1), first + 1)

    def run(read: Read, a: int, b: int) -> Tensor:
        first, last = span(a, b)
        bs = read(bias.id) if bias else None
        skip = a - (first * s - p)
        after = (last - first - 1) * s + (k - 1) * d + 1 - skip - (b - a)
        cut = max(0, min(skip, after, (k - 1) * d))  # padding leaves out as many rows at both ends: they cost nothing
        pads = [*padding[:sp], cut, *padding[sp + 1 :]]
        out = conv(read(source.id, first, last), read(weight.id), bs, stride, pads, extra, groups or 1, dilation)
        skip -= cut
        missing = skip + b - a - out.shape[axis.dim]
        if missing > 0:  # rows no input reaches hold the bias alone
            out = functional.pad(out, [0, 0] * (dims - 1 - sp) + [0, missing])
            if bs is not None:
                out.narrow(axis.dim, out.shape[axis.dim] - missing, missing).add_(bs.view(-1, *[1] * dims))
        return out.narrow(axis.dim, skip, b - a)

    inputs = [source, weight, *([bias] if bias else [])]
    work, out = 2.0 * math.prod(weight.shape[1:]) * math.prod(source.shape), ctx.result_axis(node, axis.dim)
    more: More = {"work": work, "packs": ctx.packs(source)}
    if dims == 2 and _by_phases(ctx.device, source.dtype):
        a_row = math.prod(ctx.shape(node.meta)) * node.meta.dtype.itemsize / out.rows
        taps = 2 * weight.bytes
        more["workspace"] = lambda rows: int(a_row * (rows + 2 * k)) + taps
    return ctx.emit(node, inputs, out, lambda a, b: [(source.id, *span(a, b))], run, **more)


def convolution_in(dims: int, kernels: Kernels) -> Callable[..., Tensor]:
    """Return the convolution of so many dimensions: x, weight, bias, stride, padding, dilation, groups."""
    return conv1d if dims == 1 else partial(_conv2d if dims == 2 else _conv3d, kernels)


def _columns_of_row(device: torch.device, source: Op, weight: Op, sizes: list[int], rows: int, groups: int) -> int:
    """Return the bytes that a convolution takes for each row of the result: columns, and the input with its channels
    outside, from which they are made. float64 is left out: it checks numbers, and never runs in a budget.

    Args:
        sizes: the result's spatial dimensions.
        rows: the dimension of ``sizes`` that holds the rows.
    """
    if source.dtype == torch.float64 or not has_columns(device, source.dtype, len(sizes)):
        return 0
    a_row = column_bytes(source.shape, weight.shape, sizes, groups, source.dtype.itemsize) // max(1, sizes[rows])
    return a_row + source.bytes // max(1, sizes[rows])


def _conv2d(
    kernels: Kernels,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """conv2d. On a GPU, in 16 bits, one of single taps is a matrix product: cuDNN takes 2 ms to choose an algorithm for
    each new size (H100), and the product takes as long as its convolution."""
    y = as_product(kernels, x, weight, bias) if _is_product(x, weight, stride, padding, groups) else None
    return conv2d(x, weight, bias, stride, padding, dilation, groups) if y is None else y


def _is_product(x: Tensor, weight: Tensor, stride: list[int], padding: list[int], groups: int) -> bool:
    single = weight.shape[2:] == (1, 1) and set(stride) == {1} and set(padding) == {0} and groups == 1
    return single and x.is_cuda and x.dtype in (torch.bfloat16, torch.float16)


def as_product(kernels: Kernels, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """conv2d with single taps of x_nchw as a matrix product, whose result has channels innermost. None if x does not
    have them so, or has a picture's pixels at uneven distances."""
    if x.stride(1) != 1 or x.shape[1] == 1 or 0 in x.shape:
        return None
    taps_oi = weight.flatten(1)
    if (x_pi := _pixels(x, -1)) is not None:
        y = kernels.linear(x_pi, taps_oi, bias)
    elif (x_npi := _pixels(x, x.shape[0], -1)) is not None:
        y = _picture_by_picture(x_npi, taps_oi, bias)
    else:
        return None
    return y.view(x.shape[0], *x.shape[2:], weight.shape[0]).permute(0, 3, 1, 2)


def _pixels(x: Tensor, *counts: int) -> Tensor | None:
    """Return the pixels of x_nchw, divided as the counts say, [*counts, C]; None if that takes a copy."""
    try:
        return x.permute(0, 2, 3, 1).view(*counts, x.shape[1])
    except RuntimeError:
        return None


def _picture_by_picture(x_npi: Tensor, taps_oi: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply pictures that do not follow each other in memory, as some rows of each frame do. A library would copy
    them first, element by element."""
    y_npo = x_npi.new_empty((*x_npi.shape[:2], taps_oi.shape[0]))
    for x_pi, y_po in zip(x_npi, y_npo, strict=True):
        if bias is None:
            torch.mm(x_pi, taps_oi.T, out=y_po)
        else:
            torch.addmm(bias, x_pi, taps_oi.T, out=y_po)
    return y_npo


def _conv3d(
    kernels: Kernels,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """conv3d. Frames that do not see one another are a batch of pictures, for which libraries have faster kernels."""
    alone = weight.shape[2] == 1 and stride[0] == 1 and padding[0] == 0 and 0 not in x.shape
    if not alone or x.stride(1) != 1 or x.shape[1] == 1:
        return kernels.conv3d(x, weight, bias, stride, padding, dilation, groups)
    frames, taps = settle_strides(x.transpose(1, 2).flatten(0, 1)), weight.select(2, 0)
    apart, y = not frames.is_contiguous(memory_format=torch.channels_last), None
    if apart and _is_product(frames, taps, stride[1:], padding[1:], groups):
        y = as_product(kernels, frames, taps, bias)
    if y is None:
        y = conv2d(frames, taps, bias, stride[1:], padding[1:], dilation[1:], groups)
    return y.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)


def _conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    extra: list[int],
    groups: int,
    dilation: list[int],
) -> Tensor:
    """conv_transpose2d. On a GPU, in float32, it is computed by phases: cuDNN's kernels for it add in another order at
    every call, and those that do not take six times as long."""
    plain = groups == 1 and set(dilation) == {1} and 0 not in x.shape
    if _by_phases(x.device, x.dtype) and plain:
        return _phases(x, weight, bias, stride, padding, extra)
    return conv_transpose2d(x, weight, bias, stride, padding, extra, groups, dilation)


def _by_phases(device: torch.device, dtype: torch.dtype) -> bool:
    """True if transposed convolutions are computed by phases here, which takes memory for the result once more."""
    return device.type == "cuda" and dtype in (torch.float32, torch.float64)


def _phases(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], extra: list[int]
) -> Tensor:
    """A transposed convolution of stride s as one convolution that gives s·s phases of the result, each a picture.

    y[n·s + r] = sum over j of weight[r + j·s] x[n - j]: phase r has every s-th tap, in reverse. Channels
    lie outside, as a GPU's exact convolutions want them.
    """
    (sh, sw), (inner, outer, *kernel) = stride, weight.shape
    high, wide = -(-kernel[0] // sh), -(-kernel[1] // sw)
    taps_rqoihw = x.new_zeros((sh, sw, outer, inner, high, wide))
    for row in range(kernel[0]):
        for column in range(kernel[1]):
            (j, r), (i, q) = divmod(row, sh), divmod(column, sw)
            taps_rqoihw[r, q, :, :, high - 1 - j, wide - 1 - i] = weight[:, :, row, column].T
    phases = conv2d(x, taps_rqoihw.flatten(0, 2), padding=(high - 1, wide - 1)).unflatten(1, (sh, sw, outer))
    # each phase goes right where it is wanted: a larger result that is cut down would be copied by the next convolution
    sizes = [(x.shape[d + 2] - 1) * stride[d] - 2 * padding[d] + kernel[d] + extra[d] for d in range(2)]
    beyond = any(p + n > m * s for p, n, m, s in zip(padding, sizes, phases.shape[4:], stride, strict=True))
    y = torch.empty((x.shape[0], outer, *sizes), dtype=x.dtype, device=x.device)
    if beyond:  # what output_padding asks for beyond the reach of any tap
        y.zero_()
    for r in range(sh):
        for q in range(sw):
            (top, rows), (left, columns) = (
                _places(*each) for each in zip((r, q), stride, padding, sizes, phases.shape[4:], strict=True)
            )
            y[:, :, top::sh, left::sw][:, :, : len(rows), : len(columns)] = phases[
                :, r, q, :, rows.start : rows.stop, columns.start : columns.stop
            ]
    return y if bias is None else y.add_(bias.view(-1, 1, 1))


def _places(phase: int, step: int, padding: int, size: int, count: int) -> tuple[int, range]:
    """Return where a phase begins in the result, and which of its elements n have n·step + phase - padding in [0,
    size)."""
    first = max(0, -(-(padding - phase) // step))
    last = min(count, -(-(size + padding - phase) // step))
    return first * step + phase - padding, range(first, max(first, last))


CONV_T: dict[int, Callable[..., Tensor]] = {1: conv_transpose1d, 2: _conv_transpose2d, 3: conv_transpose3d}
"""Transposed convolutions by the number of dimensions."""
