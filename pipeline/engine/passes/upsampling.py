"""Passes around upsampling: an enlarging convolution at low resolution, and channels that are laid out as pixels.

- Nearest 2x upsampling and a 3x3 convolution are one transposed convolution of the small picture: 2.25 times fewer
  operations, the same function in exact arithmetic. The enlarged picture is never written.
- Residual upsampling passes its input on as repeated channels that become pixels. As operations of the model each
  writes all of the large map: the repeated channels, their pixels, and the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tvae.pipeline.engine.ir.graph import Graph, Meta, Node
from tvae.pipeline.engine.ir.op_facts import CASTS, NEAREST, is_reshape
from tvae.pipeline.engine.ir.sizes import Size, evaluate, symbols
from tvae.pipeline.engine.passes.rewriter import Rewriter


def fuse_upsample_conv(graph: Graph) -> Graph:
    """upsample_nearest2d(x, 2) and conv2d 3x3 -> ``aten.conv_transpose2d`` of a ``tvae.subpixel_weight``."""
    r = Rewriter(graph)
    for id_, node in r.nodes():
        up = r.node(node.args[0]) if node.op == "conv2d" else None
        if up is None or NEAREST.get(up.op) != 2 or not _doubles(r, up) or not _three_by_three(r, node):
            continue
        x, weight, bias = up.args[0], node.args[1], node.args[2] if len(node.args) > 2 else None
        stored = r.node(weight)
        assert stored is not None
        out, inner = stored.meta.shape[:2]
        taps = Meta((inner, out, 4, 4), stored.meta.dtype)
        summed = r.emit_fused("subpixel_weight", r.renamed((weight,)), taps, node.module)
        args = (*r.renamed((x,)), summed, r.renamed(bias), [2, 2], [1, 1])
        r.substitute(id_, Node("call", "aten.conv_transpose2d.input", args, {}, node.module, node.outputs))
    return r.done()


def fuse_enlarge_conv(graph: Graph, takes: Callable[[int, int, int], bool]) -> Graph:
    """conv_transpose2d of a ``tvae.subpixel_weight`` -> ``tvae.enlarge_conv``, for (channels out, channels in, 3) for
    which a kernel takes the statistics of the result on the way."""
    r = Rewriter(graph)
    for id_, node in r.nodes():
        summed = r.node(node.args[1]) if node.op == "conv_transpose2d" else None
        if summed is None or summed.op != "subpixel_weight":
            continue
        inner, out = summed.meta.shape[:2]
        if not isinstance(inner, int) or not isinstance(out, int) or not takes(out, inner, 3):
            continue
        meta = Meta((out, inner, 4, 4), summed.meta.dtype)
        taps = r.emit_fused("enlarging_taps", r.renamed((summed.args[0],)), meta, node.module)
        r.replace(id_, "enlarge_conv", r.renamed(node.args[0]), taps, r.renamed(node.args[2]))
    return r.done()


def _doubles(r: Rewriter, up: Node) -> bool:
    """True if both sides are doubled by explicit factors: sizes alone could be equal by chance at one input size."""
    factors = up.args[2] if up.target.endswith(".vec") else up.args[2:4]
    if factors:
        return list(factors) == [2.0, 2.0]
    source = r.node(up.args[0])
    assert source is not None
    return all(_twice(a, b) for a, b in zip(source.meta.shape[-2:], up.meta.shape[-2:], strict=True))


def _twice(small: int | Size, large: int | Size) -> bool:
    if isinstance(small, int) or isinstance(large, int):
        return isinstance(small, int) and isinstance(large, int) and large == 2 * small
    return large.expr in (f"2*{small.expr}", f"2*({small.expr})")


def _three_by_three(r: Rewriter, node: Node) -> bool:
    """True for a 3x3 convolution of stride 1 and padding 1 over all channels at once. Not under ``torch.autocast``,
    whose kernel is cast: its sums, which are larger, would be rounded, and the rest of such a model rounds less."""
    weight = r.node(node.args[1])
    if weight is not None and weight.op in CASTS:
        return False
    stride, padding, dilation, groups = [*node.args[3:], *[None] * 4][:4] if len(node.args) > 3 else [None] * 4
    if weight is None or tuple(weight.meta.shape[2:]) != (3, 3) or node.kwargs or (groups or 1) != 1:
        return False
    ones = all(v is None or v == 1 or list(v) == [1] * len(v) for v in (stride, dilation))
    return ones and (padding == 1 or padding == "same" or list(padding or [0]) in ([1], [1, 1]))


_TRIED = (7, 11, 26)
"""Values of size symbols at which two sizes are compared: expressions may be written in several ways."""


class _Shuffle(NamedTuple):
    """Channels of ``x`` (an argument of the old graph), repeated and laid out as pixels."""

    x: Any
    factors: tuple[int, ...]
    channels: int


def fuse_shuffle_up(graph: Graph) -> Graph:
    """pixel_shuffle(repeat_interleave(x)), or the same by views, and a sum with it -> ``tvae.shuffle_up``."""
    r, shuffles = Rewriter(graph), dict[int, _Shuffle]()
    for id_, node in r.nodes():
        if (shuffle := _shuffle_of(r, node)) is not None:
            shuffles[id_] = shuffle
            r.replace(id_, "shuffle_up", r.renamed(shuffle.x), shuffle.factors, shuffle.channels, None)
        elif (addend := _summed(r, node, shuffles)) is not None:
            shuffle, other = addend
            r.replace(id_, "shuffle_up", *r.renamed((shuffle.x, shuffle.factors, shuffle.channels, other)))
    return r.done()


def _summed(r: Rewriter, node: Node, shuffles: dict[int, _Shuffle]) -> tuple[_Shuffle, Any] | None:
    """Return the shuffle that alone a sum reads, and the other operand."""
    if node.target != "aten.add.Tensor" or node.kwargs or len(node.args) != 2:
        return None
    for shuffled, other in (node.args, node.args[::-1]):
        node_shuffled, node_other = r.node(shuffled), r.node(other)
        if node_shuffled is None or node_other is None or shuffled == other or not r.read_once(shuffled):
            continue
        if shuffled.id in shuffles and node_shuffled.meta == node_other.meta == node.meta:
            return shuffles[shuffled.id], other
    return None


def _shuffle_of(r: Rewriter, node: Node) -> _Shuffle | None:
    if node.op == "pixel_shuffle":
        factor = node.args[1]
        return _repeated(r, node, node.args[0], (factor, factor))
    if not is_reshape(node):
        return None
    permuted = r.node(node.args[0])
    if permuted is not None and permuted.op in ("contiguous", "clone") and r.read_once(node.args[0]):
        permuted = r.node(permuted.args[0])
    if permuted is None or permuted.op != "permute":
        return None
    count = len(node.meta.shape) - 2
    pairs = [d for i in range(count) for d in (2 + count + i, 2 + i)]
    parts = r.node(permuted.args[0])
    if count < 1 or [*permuted.args[1]] != [0, 1, *pairs] or parts is None or not is_reshape(parts):
        return None
    shape = parts.meta.shape
    factors = shape[2 : 2 + count]
    if not all(isinstance(n, int) for n in shape[1 : 2 + count]) or shape[1] != node.meta.shape[1]:
        return None
    if not all(_times(*sizes) for sizes in zip(shape[2 + count :], factors, node.meta.shape[2:], strict=True)):
        return None
    return _repeated(r, node, parts.args[0], factors, shape[2 + count :])


def _repeated(r: Rewriter, node: Node, arg: Any, factors: Any, spatial: Any = None) -> _Shuffle | None:
    """Return the shuffle of ``arg``, if its channels are repeated. spatial: the sizes that they must have."""
    repeat, channels = r.node(arg), node.meta.shape[1]
    if repeat is None or repeat.op != "repeat_interleave" or not r.read_once(arg):
        return None
    source, times = r.node(repeat.args[0]), repeat.args[1]
    if source is None or not isinstance(times, int) or [*repeat.args[2:3]] != [1] or not isinstance(channels, int):
        return None
    if len(node.meta.shape) != len(factors) + 2 or (spatial is not None and spatial != source.meta.shape[2:]):
        return None
    return _Shuffle(repeat.args[0], tuple(factors), channels)


def _times(small: int | Size, factor: int | Size, large: int | Size) -> bool:
    """True if ``large`` is ``factor`` times ``small`` at any size of the input."""
    names = sorted(symbols(small) | symbols(large))
    tried = [{name: value + 3 * n for n, name in enumerate(names)} for value in _TRIED]
    return all(evaluate(large, sizes) == evaluate(factor, sizes) * evaluate(small, sizes) for sizes in tried)
