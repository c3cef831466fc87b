"""Passes around convolutions: their zeros, their sums, and shapes that have kernels of their own.

- A padded copy of a map costs a read and a write of all of it. Convolutions take zeros on both sides of a dimension for
  nothing. For zeros on one side of a convolution with steps, they take the same on both, and drop what those see.
- Sums and statistics of a convolution's result are computed while it is still in registers: one pass over the map is
  saved.
- Libraries fill a few channels up to a tile of many: at both ends of a decoder and an encoder, where the maps are
  largest, they compute mostly zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvae.pipeline.engine.ir.fused_ops import even_zeros
from tvae.pipeline.engine.ir.graph import Graph, Meta, Node, Ref
from tvae.pipeline.engine.ir.op_facts import PLAIN_CONVOLUTIONS
from tvae.pipeline.engine.passes.rewriter import Rewriter

_DEFAULTS: tuple[Any, ...] = (None, 1, 0, 1, 1)
"""A convolution's bias, stride, padding, dilation and groups where they are not given."""
_MOST_FROM, _MOST_TO = 64, 128
"""Taps times channels of the few that the kernels of ``fuse_narrow_conv`` take."""
_MANY = 32
"""Channels of the other side from which on it pays."""


def leave_zeros_to_convolutions(graph: Graph) -> Graph:
    """pad with zeros and a convolution -> the convolution's own padding, where they are alike on both sides of a
    dimension; ``tvae.uneven_conv`` where they are not, and the convolution takes steps."""
    r = Rewriter(graph)
    for id_, node in r.nodes():
        pad = r.node(node.args[0]) if node.op in PLAIN_CONVOLUTIONS and r.read_once(node.args[0]) else None
        parts = _split_zeros(r, pad, node) if pad is not None and _pads_zeros(pad) else None
        if pad is None or parts is None:
            continue
        rest, padding, before, after = parts
        x = r.renamed((pad.args[0],))[0]
        bias, stride, _, dilation, groups = [*node.args[2:], *_DEFAULTS[len(node.args) - 2 :]]
        stride, dilation = ([v] * len(padding) if isinstance(v, int) else v for v in (stride, dilation))
        if any(rest) and _takes_uneven(r, node, stride, dilation, groups, before, after):
            weight, bias = r.renamed((node.args[1], bias))
            r.replace(id_, "uneven_conv", x, weight, bias, stride, before, after, dilation, groups)
            continue
        if rest == list(pad.args[1]):
            continue
        if any(rest):
            x = r.emit(Node("call", pad.target, (x, rest), {}, pad.module, (_without(r, pad, rest),)))
        args = (x, *r.renamed((node.args[1], bias)), stride, padding, dilation, groups)
        r.substitute(id_, Node("call", node.target, args, {}, node.module, node.outputs))
    return r.done()


def _pads_zeros(node: Node) -> bool:
    """True for a padding with zeros, by amounts that are numbers."""
    if node.op not in ("pad", "constant_pad_nd"):
        return False
    mode = (node.args[2] if len(node.args) > 2 else node.kwargs.get("mode", "constant")) if node.op == "pad" else ""
    at = 3 if node.op == "pad" else 2
    fill = node.args[at] if len(node.args) > at else node.kwargs.get("value")
    return mode in ("constant", "") and not fill and all(type(n) is int and n >= 0 for n in node.args[1])


def _split_zeros(r: Rewriter, pad: Node, conv: Node) -> tuple[list[int], list[int], list[int], list[int]] | None:
    """Return (what is left to pad, the convolution's padding, all zeros before and after each dimension), or None."""
    dims, weight = PLAIN_CONVOLUTIONS[conv.op], r.node(conv.args[1])
    padding, dilation = conv.args[4] if len(conv.args) > 4 else 0, conv.args[5] if len(conv.args) > 5 else 1
    amounts = list(pad.args[1])
    if isinstance(padding, str) or conv.kwargs or len(conv.meta.shape) != dims + 2 or len(amounts) > 2 * dims:
        return None
    assert weight is not None
    own, step = ([v] * dims if isinstance(v, int) else list(v) * (dims // len(v)) for v in (padding, dilation))
    rest, before, after = list(amounts), list(own), list(own)
    for j in range(0, len(amounts), 2):
        dim = dims - 1 - j // 2
        kernel = weight.meta.shape[2 + dim]
        reach = (kernel - 1) * step[dim] if isinstance(kernel, int) else 0
        before[dim], after[dim] = own[dim] + amounts[j], own[dim] + amounts[j + 1]
        if 0 < amounts[j] == amounts[j + 1] <= reach and own[dim] == 0:
            own[dim], rest[j], rest[j + 1] = amounts[j], 0, 0
    return rest, own, before, after


def _takes_uneven(
    r: Rewriter, conv: Node, stride: list[int], dilation: list[int], groups: int, before: list[int], after: list[int]
) -> bool:
    """True if a convolution of pictures can make all of these zeros by a padding of its own, for a result that is at
    most half of a padded copy. For clips, ``leave_out_zero_frames`` removes them."""
    weight = r.node(conv.args[1])
    assert weight is not None
    outer, inner, *kernel = weight.meta.shape
    if conv.op != "conv2d" or not isinstance(outer, int) or not isinstance(inner, int):
        return False
    dims = zip(kernel, dilation, even_zeros(before, after, stride), strict=True)
    reached = all(isinstance(k, int) and zeros <= (k - 1) * gap for k, gap, zeros in dims)
    return reached and 2 * outer <= inner * groups * math.prod(stride)


def _without(r: Rewriter, pad: Node, rest: list[int]) -> Meta:
    """Return the pad's result with ``rest`` of its borders, which leaves a dimension all of them or none."""
    source = r.node(pad.args[0])
    assert source is not None
    shape = list(pad.meta.shape)
    for n in range(len(rest) // 2):
        if not any(rest[2 * n : 2 * n + 2]):
            shape[-1 - n] = source.meta.shape[-1 - n]
    return Meta(tuple(shape), pad.meta.dtype)


def leave_out_zero_frames(graph: Graph) -> Graph:
    """conv3d of as many frames as it has taps, the first of them zeros -> conv3d of the others, with the last taps.

    Where zeros stand for what was before a clip, a picture, and a clip's first frame, come as many frames as the kernel
    has taps: all taps but those that meet the frame itself are multiplied with zeros.
    """
    r = Rewriter(graph)
    for id_, node in r.nodes():
        pad = r.node(node.args[0]) if node.op == "conv3d" else None
        zeros = _frames_of_zeros(r, node, pad) if pad is not None and _pads_zeros(pad) else 0
        if pad is None or not zeros:
            continue
        weight = r.node(node.args[1])
        assert weight is not None
        outer, inner, taps, *kernel = weight.meta.shape
        assert isinstance(taps, int)
        meta = Meta((outer, inner, taps - zeros, *kernel), weight.meta.dtype)
        last = r.emit_fused("last_taps", (*r.renamed((node.args[1],)), zeros), meta, node.module)
        args = (*r.renamed((pad.args[0],)), last, *r.renamed(node.args[2:]))
        r.substitute(id_, Node("call", node.target, args, {}, node.module, node.outputs))
    return r.done()


def _frames_of_zeros(r: Rewriter, conv: Node, pad: Node) -> int:
    """Count the frames of zeros before those of a convolution's only result; 0 for anything else."""
    weight, amounts = r.node(conv.args[1]), list(pad.args[1])
    padding, dilation = ([*conv.args, *[None] * 6][i] for i in (4, 5))
    if weight is None or conv.kwargs or len(conv.meta.shape) != 5 or len(amounts) != 6 or any(amounts[:4]):
        return 0
    before, after = amounts[4:]
    unpadded = all(
        v in (None, n) or (isinstance(v, list | tuple) and v[0] == n) for v, n in ((padding, 0), (dilation, 1))
    )
    frames = pad.meta.shape[2]
    whole = isinstance(frames, int) and frames == weight.meta.shape[2] and before < frames
    return before if unpadded and whole and not after else 0


def _same_size(r: Rewriter, node: Node) -> tuple[int, int, int] | None:
    """Return (channels out, channels in, kernel) of a convolution of stride 1 that keeps the size."""
    weight = r.node(node.args[1])
    if weight is None or node.kwargs:
        return None
    sizes = [n for n in weight.meta.shape if isinstance(n, int)]
    stride, padding, dilation, groups = [*node.args[3:], *[None] * 4][:4]
    if len(sizes) != 4 or sizes[2] != sizes[3] or sizes[2] % 2 == 0:
        return None
    out, inner, kernel, _ = sizes
    ones = all(_is_everywhere(v, 1) for v in (stride, dilation, groups))
    same = padding == "same" or _is_everywhere(padding, kernel // 2, default=0)
    return (out, inner, kernel) if ones and same else None


def _is_everywhere(value: Any, wanted: Any, default: int = 1) -> bool:
    """True if this option, in any of its spellings, is the same number for both dimensions."""
    if value is None:
        return bool(default == wanted)
    return set(value) == {wanted} if isinstance(value, (list, tuple)) else bool(value == wanted)


def fuse_conv_add(graph: Graph) -> Graph:
    """residual(conv2d(x), y, bias) -> ``tvae.conv_add``, where nothing else reads the convolution's result."""
    r = Rewriter(graph)
    for id_, node in r.nodes():
        parts = _conv_and_addend(r, node) if node.op == "residual" and isinstance(node.args[1], Ref) else None
        if parts is not None:
            r.replace(id_, "conv_add", *r.renamed(parts))
    return r.done()


def fuse_conv_stats(graph: Graph, takes: Callable[[int, int, int], bool]) -> Graph:
    """conv2d(x) -> ``tvae.conv_add`` that adds nothing but the bias, for (channels out, channels in, kernel) which the
    kernel takes."""
    r = Rewriter(graph)
    for id_, node in r.nodes():
        sizes = _same_size(r, node) if node.op == "conv2d" else None
        if sizes is not None and takes(*sizes):
            x, weight, bias = [*node.args[:3], None][:3]
            r.replace(id_, "conv_add", *r.renamed((x, weight, None, bias)))
    return r.done()


def _conv_and_addend(r: Rewriter, node: Node) -> tuple[Any, ...] | None:
    """Return (x, weight, addend, bias) of the sum of such a convolution and another value."""
    first, second, bias = node.args
    for conv_ref, other in ((first, second), (second, first)):
        conv = r.node(conv_ref)
        if conv is None or conv.op != "conv2d" or conv_ref == other or not r.read_once(conv_ref):
            continue
        if conv.args[2:3] not in ((), (None,)):
            continue
        sizes = _same_size(r, conv)
        if sizes is not None and sizes[2] > 1:  # of a single tap the sum takes longer than the products
            return (*conv.args[:2], other, bias)
    return None


def fuse_narrow_conv(graph: Graph) -> Graph:
    """conv2d of a few channels -> ``tvae.conv_from_few``; to a few of a norm -> ``tvae.conv_to_few``, which takes the
    normalisation and its activation along."""
    r = Rewriter(graph)
    for id_, node in r.nodes():
        sizes = _same_size(r, node) if node.op == "conv2d" else None
        if sizes is None:
            continue
        out, inner, kernel = sizes
        norm, bias = r.node(node.args[0]), r.renamed(node.args[2]) if len(node.args) > 2 else None
        weight = r.renamed(node.args[1])
        if _few_inside(inner * kernel * kernel, out):
            r.replace(id_, "conv_from_few", r.renamed(node.args[0]), weight, bias)
        elif out * kernel * kernel <= _MOST_TO and inner >= _MANY and _joins(r, node, norm):
            assert norm is not None
            r.replace(id_, "conv_to_few", *r.renamed(norm.args), weight, bias)
    return r.done()


def _few_inside(products: int, out: int) -> bool:
    return products <= _MOST_FROM and out >= _MANY


def _joins(r: Rewriter, node: Node, norm: Node | None) -> bool:
    return norm is not None and norm.op == "norm_act" and r.read_once(node.args[0])


def fuse_strided_conv(graph: Graph, takes: Callable[[int, int, int], bool]) -> Graph:
    """``tvae.uneven_conv`` -> ``tvae.down_conv``, for (channels out, channels in, 3) which the kernel takes.

    Encoders halve their maps by a 3x3 convolution in steps of two, with a row and a column of zeros at the end.
    Libraries pad both ends or copy the map, and choose an algorithm for every new size.
    """
    r = Rewriter(graph)
    for id_, node in r.nodes():
        sizes = _halving_sizes(r, node) if node.op == "uneven_conv" else None
        if sizes is not None and takes(*sizes):
            r.replace(id_, "down_conv", *r.renamed(node.args[:3]))
    return r.done()


def _halving_sizes(r: Rewriter, node: Node) -> tuple[int, int, int] | None:
    """Return (channels out, channels in, 3) of such a convolution of pictures."""
    weight = r.node(node.args[1])
    assert weight is not None
    shape, settings = list(weight.meta.shape), [list(part) for part in node.args[3:7]]
    if len(shape) != 4 or shape[2:] != [3, 3] or settings != [[2, 2], [0, 0], [1, 1], [1, 1]] or node.args[7] != 1:
        return None
    outer, inner = shape[:2]
    return (outer, inner, 3) if isinstance(outer, int) and isinstance(inner, int) else None
