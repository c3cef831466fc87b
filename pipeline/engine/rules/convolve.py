"""How convolutions are computed where PyTorch's own way is slow, or not the same twice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from tvae.kernels import Kernels
from tvae.kernels.columns import column_bytes, has_columns
from tvae.kernels.library_convolutions import (
    conv1d,
    conv2d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from tvae.pipeline.engine.ir.layout import settled
from tvae.pipeline.engine.ir.program import Op

__all__ = ["CONV_T", "as_product", "by_phases", "columns_of_row", "convolution_in"]


def convolution_in(dims: int, kernels: Kernels) -> Callable[..., Tensor]:
    """The convolution of so many dimensions: x, weight, bias, stride, padding, dilation, groups."""
    return conv1d if dims == 1 else partial(_conv2d if dims == 2 else _conv3d, kernels)


def columns_of_row(device: torch.device, source: Op, weight: Op, made: list[int], rows: int, groups: int) -> int:
    """Bytes beside operands and result that a convolution takes for each row of the result: columns, and the input with
    its channels outside, of which they are made. made: sizes of the result; rows: which of them is the rows'. Those of
    float64 are left out: it is there to check numbers, not to run in a budget."""
    if source.dtype == torch.float64 or not has_columns(device, source.dtype, len(made)):
        return 0
    a_row = column_bytes(source.shape, weight.shape, made, groups, source.dtype.itemsize) // max(1, made[rows])
    return a_row + source.bytes // max(1, made[rows])


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
    """conv2d; on a GPU, in 16 bits, one of single taps is a matrix product: cuDNN thinks for 2 ms about each size that
    it has not seen (H100), and the product takes as long as its convolution."""
    y = as_product(kernels, x, weight, bias) if _is_product(x, weight, stride, padding, groups) else None
    return conv2d(x, weight, bias, stride, padding, dilation, groups) if y is None else y


def _is_product(x: Tensor, weight: Tensor, stride: list[int], padding: list[int], groups: int) -> bool:
    single = weight.shape[2:] == (1, 1) and set(stride) == {1} and set(padding) == {0} and groups == 1
    return single and x.is_cuda and x.dtype in (torch.bfloat16, torch.float16)


def as_product(kernels: Kernels, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """conv2d with single taps of x_nchw as a matrix product, which has channels innermost; None where x does not have
    them so, or has a picture's pixels at uneven distances."""
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
    """The pixels of x_nchw, divided as the counts say, [*counts, C]; None where that takes a copy."""
    try:
        return x.permute(0, 2, 3, 1).view(*counts, x.shape[1])
    except RuntimeError:
        return None


def _picture_by_picture(x_npi: Tensor, taps_oi: Tensor, bias: Tensor | None) -> Tensor:
    """The same of pictures that do not follow each other in memory, as some rows of each frame do: a library would copy
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
    """conv3d; frames that do not see one another are a batch of pictures, for which libraries have faster kernels."""
    alone = weight.shape[2] == 1 and stride[0] == 1 and padding[0] == 0 and 0 not in x.shape
    if not alone or x.stride(1) != 1 or x.shape[1] == 1:
        return kernels.conv3d(x, weight, bias, stride, padding, dilation, groups)
    frames, taps = settled(x.transpose(1, 2).flatten(0, 1)), weight.select(2, 0)
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
    """conv_transpose2d; of float32 on a GPU by phases: cuDNN's kernels for those add in another order at every call,
    and those that do not take six times as long."""
    plain = groups == 1 and set(dilation) == {1} and 0 not in x.shape
    if by_phases(x.device, x.dtype) and plain:
        return _phases(x, weight, bias, stride, padding, extra)
    return conv_transpose2d(x, weight, bias, stride, padding, extra, groups, dilation)


def by_phases(device: torch.device, dtype: torch.dtype) -> bool:
    """Are transposed convolutions computed by phases here, in memory for the result once more?"""
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


def _places(phase: int, step: int, padding: int, size: int, there: int) -> tuple[int, range]:
    """Where a phase begins in the result, and which of its elements n have n·step + phase - padding in [0, size)."""
    first = max(0, -(-(padding - phase) // step))
    last = min(there, -(-(size + padding - phase) // step))
    return first * step + phase - padding, range(first, max(first, last))


CONV_T: dict[int, Callable[..., Tensor]] = {1: conv_transpose1d, 2: _conv_transpose2d, 3: conv_transpose3d}
"""Transposed convolutions by the number of dimensions."""
