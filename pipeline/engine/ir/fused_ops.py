"""The fused operations that passes insert: what each computes on whole values.

A fused node's target is ``tvae.<name>``; its arguments are those of the function here, without ``kernels``. The rules
compute the same strip by strip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tvae.kernels import Kernels, functional
from tvae.kernels.library_convolutions import conv1d, conv2d, conv3d
from tvae.pipeline.engine.ir.layout import copy_into, dense, empty_like_layout


def norm_act(
    kernels: Kernels,
    x: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: Tensor | None,
    act: str | None,
) -> Tensor:
    """act(group_norm(x + offset)) of x_nc*; the offset is a constant per channel."""
    affine = norm_affine(kernels, kernels.group_stats(x), x.dtype, groups, eps, weight, bias, offset)
    return kernels.norm_act(x, affine, act)


def norm_pad(
    kernels: Kernels,
    x: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: Tensor | None,
    act: str | None,
    amounts: Sequence[int],
    mode: str,
) -> Tensor:
    """``norm_act`` with borders of zeros (``constant``) or of its own rows and columns around it."""
    affine = norm_affine(kernels, kernels.group_stats(x), x.dtype, groups, eps, weight, bias, offset)
    return kernels.pad(x, amounts, mode, affine, act)


def norm_affine(
    kernels: Kernels,
    parts: Tensor,
    dtype: torch.dtype,
    groups: int,
    eps: float,
    weight: Tensor | None,
    bias: Tensor | None,
    offset: Tensor | None,
) -> Tensor:
    """Return a normalisation's map from statistics of values of type ``dtype``: in float64 for those, else in
    float32."""
    if dtype == torch.float64 and weight is None:  # the map takes the widest type that it is made from
        weight = torch.ones(parts.shape[-1], dtype=dtype, device=parts.device)
    return kernels.finish_stats(parts, groups, eps, weight, bias, offset)


def residual(kernels: Kernels, x: Tensor, other: Tensor | None, bias: Tensor | None) -> Tensor:
    """x + other + bias of x_nc*; the bias is a constant per channel."""
    return kernels.add_stats(x, other, bias, None, False)[0]


_SLICE = 1 << 15
"""Pairs of channels whose kernels are summed at a time: their steps take some 8 MiB. Those of a whole weight of 1024
channels in bfloat16 (18 MiB) would take 196 MiB beside the result, which no plan counts."""


def subpixel_weight(_kernels: Kernels | None, weight: Tensor) -> Tensor:
    """Sum a 3x3 kernel after nearest 2x upsampling to that of a transposed convolution: [O, I, 3, 3] -> [I, O, 4, 4].

    Nearest upsampling is a transposed convolution with ones, 2x2, stride 2; the two kernels one after the other are
    one, their convolution. The stride leaves 2x2 of its taps for each pixel of the result, sums of the nine. They are
    summed in at least float32, and the sum is cast once.
    """
    # stays channels-last: convolutions that want it would copy it in every strip
    last = torch.channels_last if weight.stride(1) == 1 else torch.contiguous_format
    size = (weight.shape[1], weight.shape[0], 4, 4)
    taps = torch.empty(size, dtype=weight.dtype, device=weight.device, memory_format=last)
    _sum_taps(weight, taps.transpose(0, 1))
    return taps


def enlarging_taps(_kernels: Kernels | None, weight: Tensor) -> Tensor:
    """Sum the taps of ``subpixel_weight`` for a kernel that reads channels in innermost: [O, I, 3, 3] -> [O, I, 4,
    4]."""
    size, last = (*weight.shape[:2], 4, 4), torch.channels_last
    taps = torch.empty(size, dtype=weight.dtype, device=weight.device, memory_format=last)
    _sum_taps(weight, taps)
    return taps


def _sum_taps(weight_oi33: Tensor, into_oi44: Tensor) -> None:
    """Write the kernels of ``subpixel_weight``, a few output channels at a time."""
    count = max(1, _SLICE // weight_oi33.shape[1])
    for weight, into in zip(weight_oi33.split(count), into_oi44.split(count), strict=True):
        wide = weight if weight.dtype == torch.float64 else weight.float()
        rows = functional.pad(wide.flip(2, 3), (0, 0, 1, 1)).unfold(2, 2, 1).sum(-1)
        into.copy_(functional.pad(rows, (1, 1)).unfold(3, 2, 1).sum(-1))


def last_taps(_kernels: Kernels | None, weight: Tensor, first: int) -> Tensor:
    """Return the taps in time of [O, I, T, H, W] from ``first`` on, as dense as the weight."""
    rest = weight[:, :, first:]
    return rest.contiguous(memory_format=torch.channels_last_3d if weight.stride(1) == 1 else torch.contiguous_format)


def conv_add(kernels: Kernels, x: Tensor, weight: Tensor, other: Tensor | None, bias: Tensor | None) -> Tensor:
    """conv2d of x_nchw that keeps its size, + other + bias per channel, both optional."""
    return kernels.conv_add(x, weight, other, bias, _same_size_padding(weight), None, False)[0]


def uneven_conv(
    _kernels: Kernels,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    before: Sequence[int],
    after: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """conv*d of x_nc* with different numbers of zeros before and after each dimension. The convolution's own padding,
    alike on both sides, is wider in whole steps; what those see is dropped, and x is not copied into a larger map."""
    zeros = even_zeros(before, after, stride)
    y = (conv1d, conv2d, conv3d)[x.ndim - 3](x, weight, bias, stride, zeros, dilation, groups)
    for n, (step, first, last, gap) in enumerate(zip(stride, before, after, dilation, strict=True)):
        size = (x.shape[2 + n] + first + last - gap * (weight.shape[2 + n] - 1) - 1) // step + 1
        y = y.narrow(2 + n, (zeros[n] - first) // step, size)
    return dense(y)


def even_zeros(before: Sequence[int], after: Sequence[int], stride: Sequence[int]) -> list[int]:
    """Return the fewest zeros on both sides of each dimension that are enough, and whole steps more than those before
    it."""
    return [b + max(0, -(-(a - b) // s)) * s for b, a, s in zip(before, after, stride, strict=True)]


def down_conv(kernels: Kernels, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """conv2d, 3x3 in steps of two, of x_nchw with a row and a column of zeros at its end."""
    return kernels.down_conv(x, weight, bias, (1, 1), None, False)[0]


def shuffle_up(kernels: Kernels, x: Tensor, factors: Sequence[int], channels: int, other: Tensor | None) -> Tensor:
    """Pixel shuffle of x_nc* with every channel repeated, so that ``channels`` are left, plus ``other``."""
    return kernels.shuffle_up(x, factors, channels, other)


def enlarge_conv(kernels: Kernels, x: Tensor, taps: Tensor, bias: Tensor | None) -> Tensor:
    """conv2d, 3x3, of x_nchw enlarged twice, from ``enlarging_taps``."""
    return kernels.enlarge_conv(x, taps, bias, (1, 1, 1, 1), None, False)[0]


def conv_from_few(kernels: Kernels, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """conv2d of x_nchw that keeps its size; x has a few channels."""
    return kernels.conv_from_few(x, weight, bias, _same_size_padding(weight), None, False)[0]


def conv_to_few(
    kernels: Kernels,
    x: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: Tensor | None,
    act: str | None,
    taps: Tensor,
    more: Tensor | None,
) -> Tensor:
    """conv2d with ``taps`` and the bias ``more`` of ``norm_act``; the result has a few channels."""
    affine = norm_affine(kernels, kernels.group_stats(x), x.dtype, groups, eps, weight, bias, offset)
    return kernels.conv_to_few(x, taps, more, _same_size_padding(taps), affine, act)


def _same_size_padding(weight: Tensor) -> list[int]:
    high, wide = weight.shape[2] // 2, weight.shape[3] // 2
    return [wide, wide, high, high]


def sum_of(_kernels: Kernels, a: Tensor, b: Tensor) -> Tensor:
    """Add two biases, in at least float32."""
    return a + b if a.dtype == torch.float64 else a.float() + b.float()


def passed_on(_kernels: Kernels, weight: Tensor, lacking: Tensor, bias: Tensor | None) -> Tensor:
    """Return the bias that a convolution of single pixels [O, I, 1, ...] lacks if its input lacks ``lacking``: in at
    least float32."""
    kind = torch.promote_types(weight.dtype, torch.float32)
    result = weight.flatten(1).to(kind) @ lacking.to(kind)
    return result if bias is None else result + bias.to(kind)


def rms_norm_act(
    kernels: Kernels,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    form: str,
    act: str | None,
    offset: Tensor | None = None,
    before: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """See ``tvae.kernels.operations.rms_norm_act``; weight and bias may have trailing dimensions of one.

    Args:
        before: frames [N, C, t, H, W] of x's type that the result begins with; the normalised ones follow.
        out: memory for the result, apart from x.
    """
    weight, bias = (t if t is None or t.ndim == 1 else t.flatten() for t in (weight, bias))
    if before is None:
        return kernels.rms_norm_act(x, weight, bias, eps, form, act, offset, out)
    first, more = before.shape[2], x.shape[2]
    y = empty_like_layout(x, (*x.shape[:2], first + more, *x.shape[3:])) if out is None else out
    copy_into(y.narrow(2, 0, first), before)
    kernels.rms_norm_act(x, weight, bias, eps, form, act, offset, y.narrow(2, first, more))
    return y


def wide_attention(kernels: Kernels, q: Tensor, k: Tensor, v: Tensor, scale: float, frames: int) -> Tensor:
    """Attention of a single head, q, k, v [B, 1, tokens, D]; with several frames each sees its own keys and earlier
    ones."""
    q, k, v = (t.squeeze(1).unflatten(1, (frames, -1)) for t in (q, k, v))
    return kernels.wide_attention(q, k, v, scale, frames > 1).flatten(1, 2).unsqueeze(1)


_PIECE = 1 << 20
"""Distances that exist at a time, at most. A piece has one vector at least."""
_PADDED = 2
"""Numbers that PyTorch appends to each vector and each code, in a copy, to have distances as a matrix product."""


def nearest_code(_kernels: object, x: Tensor, codes: Tensor) -> Tensor:
    """Find for vectors x [n, C] the index, int64 [n], of the nearest of codes [m, C]; of several the first.

    Codes often lie closer together than distances in float32 can tell. A model then takes other codes in float32 than
    in float64, and its result differs by whole codes. So distances are computed in float64.
    """
    table = codes.double()
    return torch.cat([torch.cdist(part.double(), table).argmin(1) for part in x.split(_vectors_at_once(len(codes)))])


def nearest_code_bytes(vectors: int, channels: int, codes: int) -> int:
    """Count the bytes that ``nearest_code`` takes besides its operands and its result."""
    piece = min(vectors, _vectors_at_once(codes))
    return 8 * ((2 * channels + _PADDED) * (codes + piece) + piece * codes)


def _vectors_at_once(codes: int) -> int:
    return max(1, _PIECE // codes)


_FUSED: dict[str, Callable[..., Tensor]] = {
    fn.__name__: fn
    for fn in (
        *(norm_act, norm_pad, residual, subpixel_weight, enlarging_taps, last_taps, sum_of, passed_on),
        *(rms_norm_act, wide_attention, conv_add, uneven_conv, down_conv, enlarge_conv, conv_from_few, conv_to_few),
        *(nearest_code, shuffle_up),
    )
}


def fused(name: str, kernels: Kernels) -> Callable[..., Any]:
    """Return the fused operation of this name."""
    return partial(_FUSED[name], kernels)
