"""Level 1: the definitions, in PyTorch operations. Every faster level must give these numbers.

Legend: x_nc* is [N, C, *spatial] in any memory layout; parts_nb3c are statistics of B disjoint blocks of pixels, for
every channel (count, mean, sum of squared deviations), float64; affine_2nc is (scale, shift) per channel; act is None
or "silu".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.kernels.convolution import convolved
from tvae.kernels.frames import frames_to_tensor, tensor_to_frames

__all__ = ["IMPLEMENTATIONS", "block_stats", "blocks", "lie_together", "merge_stats", "missing"]

_CPU_BLOCK, _BLOCK = 1 << 18, 1 << 26
"""Elements that statistics are taken of at a time. On a CPU the centred copy stays in its cache (measured: 36 ms ->
5 ms for 64x512x512); elsewhere it takes 256 MiB at most, and float32 sums keep their digits."""


def group_stats(x: Tensor) -> Tensor:
    """Statistics of every channel of x_nc* as parts_nb3c: two passes, so that a large mean costs no digits."""
    return torch.cat([block_stats(part) for part in blocks(x)], 1)


def blocks(x: Tensor) -> tuple[Tensor, ...]:
    """x_nc* in the pieces that its statistics are taken in: of the outermost dimension that is any, so that pixels that
    lie one after the other stay together."""
    most = _CPU_BLOCK if x.device.type == "cpu" else _BLOCK
    outermost = next((d for d in range(2, x.ndim) if x.shape[d] > 1), None)
    if x.numel() <= most or outermost is None:
        return (x,)
    pieces = x.split(max(1, x.shape[outermost] * most // x.numel()), outermost)
    return tuple(block for piece in pieces for block in blocks(piece))


def stats_bytes(elements: int, dtype: torch.dtype, device: torch.device) -> int:
    """What ``group_stats`` of so many elements holds beside them: a block in float32, and its centred copy."""
    copies = 1 if dtype in (torch.float32, torch.float64) else 2
    return copies * max(4, dtype.itemsize) * min(elements, _CPU_BLOCK if device.type == "cpu" else _BLOCK)


def block_stats(x: Tensor) -> Tensor:
    """Statistics of x_nc* as parts_nb3c of one block."""
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    dims = list(range(2, x.ndim))
    mean = wide.mean(dims, keepdim=True)
    centred = wide - mean
    # the mean of what remains takes back the rounding of the first pass (Chan, Golub and LeVeque 1983)
    rest = centred.mean(dims).double()
    count = torch.full_like(rest, x[:1, :1].numel())
    m2 = centred.square_().sum(dims).double() - rest.square() * count
    return torch.stack([count, mean.flatten(1).double() + rest, m2], 1).unsqueeze(1)


def merge_stats(found: Sequence[Tensor]) -> Tensor:
    """Statistics parts_nb3c of further blocks each, as those of all their pixels in one block (Chan, Golub and LeVeque
    1979)."""
    count, mean, m2 = torch.cat(list(found), 1).unbind(2)
    return torch.stack(_merged(count, mean, m2, (1,)), 2)


def _merged(count: Tensor, mean: Tensor, m2: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    total = count.sum(dims, keepdim=True)
    centre = (count * mean).sum(dims, keepdim=True) / total
    return total, centre, (m2 + count * (mean - centre).square()).sum(dims, keepdim=True)


def finish_stats(
    parts: Tensor, groups: int, eps: float, weight: Tensor | None, bias: Tensor | None, offset: Tensor | None
) -> Tensor:
    """The affine map of a group normalisation, affine_2nc, from parts_nb3c of x.

    ``x·scale + shift`` is (x + offset - mean)/sqrt(var + eps)·weight + bias, with mean and biased variance per group of
    channels of x + offset; the offset is a constant per channel (the bias of a convolution that was left out). Blocks
    and channels merge by the general form of Chan, Golub and LeVeque (1979). weight, bias and offset are [C]; where one
    of them is float64 so is the result, else it is float32.
    """
    count, mean, m2 = parts.unbind(2)
    if offset is not None:
        mean = mean + offset.double()
    n, _, c = mean.shape
    count, mean, m2 = (t.reshape(n, -1, groups, c // groups) for t in (count, mean, m2))
    total, centre, m2 = _merged(count, mean, m2, (1, 3))
    scale = (m2 / total + eps).rsqrt().expand(n, 1, groups, c // groups).reshape(n, c)
    centre = centre.expand(n, 1, groups, c // groups).reshape(n, c)
    scale = scale if weight is None else scale * weight.double()
    shift = (0 if offset is None else offset.double()) - centre
    shift = shift * scale if bias is None else torch.addcmul(bias.double(), shift, scale)
    wide = any(t is not None and t.dtype == torch.float64 for t in (weight, bias, offset))
    return torch.stack([scale, shift]).to(torch.float64 if wide else torch.float32)


def norm_act(x: Tensor, affine: Tensor, act: str | None) -> Tensor:
    """act(x·scale + shift) of x_nc* per sample and channel, rounded once to x's type before the activation."""
    n, c = x.shape[:2]
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    scale, shift = affine.to(kind).unbind(0)
    if n == 1 or x.is_contiguous():
        # inference-mode batch norm is this very map per channel, in one pass and with wide factors for narrow x
        flat = x.view(1, n * c, *x.shape[2:])
        zero, one = scale.new_zeros(n * c), scale.new_ones(n * c)
        factors = scale.reshape(-1), shift.reshape(-1)
        y = torch.batch_norm(flat, *factors, zero, one, False, 0.0, 0.0, False).view(x.shape)
    else:
        shape = (n, c, *[1] * (x.ndim - 2))
        y = torch.addcmul(shift.view(shape), x.to(kind), scale.view(shape)).to(x.dtype)
    return _activate(y, act)


def _activate(y: Tensor, act: str | None) -> Tensor:
    if act not in (None, "silu"):
        raise ValueError(f"the activations are None and 'silu', not '{act}'")
    return y if act is None else F.silu(y, inplace=True)


def add_stats(
    x: Tensor, residual: Tensor | None, bias: Tensor | None, out: Tensor | None, stats: bool
) -> tuple[Tensor, Tensor | None]:
    """y = x + residual + bias of x_nc*, and with ``stats`` the parts_nb3c of y. ``out`` takes y; it may be x itself.

    It may be the residual, too, which is then whole for as long as this can fail for want of memory.
    """
    shift = None if bias is None else bias.to(x.dtype).view(1, -1, *[1] * (x.ndim - 2))
    if stats and residual is not None and out is not None and lie_together(out, residual):
        pairs = zip(blocks(x), blocks(residual), strict=True)
        parts = torch.cat([block_stats(_sum(a, b, shift, None)) for a, b in pairs], 1)
        return _sum(x, residual, shift, out), parts
    y = _sum(x, residual, shift, out)
    return y, group_stats(y) if stats else None


def _sum(x: Tensor, residual: Tensor | None, shift: Tensor | None, out: Tensor | None) -> Tensor:
    y = x
    if residual is not None:
        y = torch.add(x, residual, out=out)
    if shift is not None:
        y = torch.add(x, shift, out=out) if y is x else y.add_(shift)
    if out is not None and y is not out:
        y = out.copy_(x) if out is not x else x
    return y


def lie_together(one: Tensor, other: Tensor) -> bool:
    """Are they parts of one piece of memory?"""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def rms_norm_act(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    form: str,
    act: str | None,
    offset: Tensor | None = None,
) -> Tensor:
    """act(x / size·weight + bias) of x_nc*, the size being that of each pixel's channels; weight and bias are [C].

    form ``normalize``: size = max(‖x‖, eps)/sqrt(C) (Wan's); form ``rms``: size = sqrt(mean(x²) + eps). Computed in at
    least float32. offset: a constant per channel that is added to x first (a convolution's bias that was left out).
    """
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    shape = (1, -1, *[1] * (x.ndim - 2))
    wide = wide if offset is None else wide + offset.view(shape).to(wide.dtype)
    size = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
    if form == "normalize":
        y = wide * (x.shape[1] ** 0.5 / size.clamp_min_(eps))
    elif form == "rms":
        y = wide * (size.square_() / x.shape[1] + eps).rsqrt_()
    else:
        raise ValueError(f"rms_norm_act has the forms 'normalize' and 'rms', not '{form}'")
    if weight is not None:
        y.mul_(weight.view(shape).to(y.dtype))
    if bias is not None:
        y.add_(bias.view(shape).to(y.dtype))
    return _activate(y.to(x.dtype), act)


def pad(x: Tensor, amounts: Sequence[int], mode: str, affine: Tensor | None, act: str | None) -> Tensor:
    """x_nc* with rows and columns around it, zeros (``constant``) or its own (``replicate``, ``reflect``).

    amounts: as for ``F.pad``, the last dimension first. With ``affine`` it is norm_act(x, affine, act) that is padded.
    """
    return F.pad(x if affine is None else norm_act(x, affine, act), list(amounts), mode)


def enlarge(x: Tensor, factors: Sequence[int]) -> Tensor:
    """x_nc* with every pixel repeated, by a whole factor for each spatial dimension (nearest upsampling)."""
    size = [n * factor for n, factor in zip(x.shape[2:], factors, strict=True)]
    return F.interpolate(x, size=size, mode="nearest")


def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """conv3d of x [N, C, T, H, W], as PyTorch has it; the options are three numbers each."""
    return F.conv3d(x, weight, bias, list(stride), list(padding), list(dilation), groups)


def conv_add(
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    bias: Tensor | None,
    pads: Sequence[int],
    out: Tensor | None,
    stats: bool,
) -> tuple[Tensor, Tensor | None]:
    """y = conv2d of x_nchw with zeros around it + residual + bias, and with ``stats`` the parts_nb3c of y. Without a
    residual or a bias, what there is of the sum.

    pads: (left, right, top, bottom). ``out`` takes y; it may be the residual, which is then whole for as long as this
    can fail for want of memory.
    """
    y = convolved(x, weight, pads)
    return add_stats(y, residual, bias, y if out is None else out, stats)


def enlarge_conv(
    x: Tensor, taps: Tensor, bias: Tensor | None, pads: Sequence[int], out: Tensor | None, stats: bool
) -> tuple[Tensor, Tensor | None]:
    """y = conv2d, 3x3, of x_nchw enlarged twice, with zeros around it, and with ``stats`` the parts_nb3c of y.

    taps: [O, I, 4, 4], of a transposed convolution of stride 2: sums of the nine, as each pixel of x meets them.
    pads: (left, right, top, bottom), in pixels of x, zero or one; without one the pixels of x at that side are only
    seen by their neighbours, and have none of y. ``out`` takes y.
    """
    left, right, top, bottom = (2 - 2 * pad for pad in pads)
    whole = F.conv_transpose2d(x, taps.transpose(0, 1), bias, stride=2, padding=1)
    y = whole[:, :, top : whole.shape[2] - bottom, left : whole.shape[3] - right]
    y = y if out is None else out.copy_(y)
    return y, group_stats(y) if stats else None


def conv_from_few(
    x: Tensor, weight: Tensor, bias: Tensor | None, pads: Sequence[int], out: Tensor | None, stats: bool
) -> tuple[Tensor, Tensor | None]:
    """y = conv2d of x_nchw with zeros around it, and with ``stats`` the parts_nb3c of y; x has a few channels, y many.

    pads: (left, right, top, bottom). ``out`` takes y.
    """
    y = F.conv2d(F.pad(x, list(pads)), weight, bias)
    y = y if out is None else out.copy_(y)
    return y, group_stats(y) if stats else None


def conv_to_few(
    x: Tensor, weight: Tensor, bias: Tensor | None, pads: Sequence[int], affine: Tensor | None, act: str | None
) -> Tensor:
    """conv2d of norm_act(x_nchw, affine, act), or of x itself, with zeros around it; the result has a few channels."""
    return F.conv2d(F.pad(x if affine is None else norm_act(x, affine, act), list(pads)), weight, bias)


def wide_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """softmax(q·kᵀ·scale)·v of one head. q [B, T, M, D], k and v [B, T, N, D] -> [B, T, M, D].

    Every frame's queries see the keys of all T frames; ``causal``: of their own frame and those before it.
    """
    b, t, m, d = q.shape
    if not causal:
        keys, values = k.reshape(b, 1, -1, d), v.reshape(b, 1, -1, d)
        return F.scaled_dot_product_attention(q.reshape(b, 1, -1, d), keys, values, scale=scale).view(b, t, m, d)
    out = torch.empty_like(q)
    for i in range(t):
        keys, values = k[:, : i + 1].reshape(b, 1, -1, d), v[:, : i + 1].reshape(b, 1, -1, d)
        out[:, i] = F.scaled_dot_product_attention(q[:, i : i + 1], keys, values, scale=scale)[:, 0]
    return out


def sample(mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
    """mean + std·noise in one pass: a draw from the posterior."""
    return torch.addcmul(mean, std, noise)


IMPLEMENTATIONS = {
    fn.__name__: fn
    for fn in (
        *(group_stats, finish_stats, norm_act, add_stats),
        *(rms_norm_act, pad, enlarge, conv3d, conv_add, enlarge_conv, conv_from_few, conv_to_few),
        *(wide_attention, sample),
        *(frames_to_tensor, tensor_to_frames),
    )
}
"""Operation -> its definition."""


def missing() -> str | None:
    """Why this level cannot run on this machine: never."""
    return None
