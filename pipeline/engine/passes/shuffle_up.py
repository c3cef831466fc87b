"""Pass: repeated channels that are laid out as pixels become one operation, with the sum that follows.

Residual upsampling passes its input on like this. As operations of the model each writes all of the large map: the
repeated channels, their pixels, and the sum.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tvae.pipeline.engine.ir.graph import Graph, Node
from tvae.pipeline.engine.ir.op_facts import is_reshape
from tvae.pipeline.engine.ir.sizes import Size, evaluate, symbols
from tvae.pipeline.engine.passes.rewriter import Rewriter

__all__ = ["fuse_shuffle_up"]

_TRIED = (7, 11, 26)
"""Values of size symbols at which two sizes are compared: expressions may be written in several ways."""


class _Found(NamedTuple):
    """x: the value whose channels are repeated (an argument of the old graph)."""

    x: Any
    factors: tuple[int, ...]
    channels: int


def fuse_shuffle_up(graph: Graph) -> Graph:
    """pixel_shuffle(repeat_interleave(x)), or the same by views, and what is added to it -> ``tvae.shuffle_up``."""
    r, found = Rewriter(graph), dict[int, _Found]()
    for id_, node in enumerate(r.graph.nodes):
        if (shuffled := _shuffled(r, node)) is not None:
            found[id_] = shuffled
            r.replace(id_, "shuffle_up", r.renamed(shuffled.x), shuffled.factors, shuffled.channels, None)
            continue
        here = _summed(r, node, found)
        if here is None:
            r.keep(id_)
            continue
        shuffled, other = here
        r.replace(id_, "shuffle_up", *r.renamed((shuffled.x, shuffled.factors, shuffled.channels, other)))
    return r.done()


def _summed(r: Rewriter, node: Node, found: dict[int, _Found]) -> tuple[_Found, Any] | None:
    """What is summed with the other operand, by a sum that alone reads it."""
    if node.target != "aten.add.Tensor" or node.kwargs or len(node.args) != 2:
        return None
    for mine, other in (node.args, node.args[::-1]):
        here, beside = r.node(mine), r.node(other)
        if here is None or beside is None or mine == other or not r.read_once(mine):
            continue
        if mine.id in found and here.meta == beside.meta == node.meta:
            return found[mine.id], other
    return None


def _shuffled(r: Rewriter, node: Node) -> _Found | None:
    if node.op == "pixel_shuffle":
        factor = node.args[1]
        return _repeated(r, node, node.args[0], (factor, factor))
    if not is_reshape(node):
        return None
    turned = r.node(node.args[0])
    if turned is not None and turned.op in ("contiguous", "clone") and r.read_once(node.args[0]):
        turned = r.node(turned.args[0])
    if turned is None or turned.op != "permute":
        return None
    count = len(node.meta.shape) - 2
    pairs = [d for i in range(count) for d in (2 + count + i, 2 + i)]
    parts = r.node(turned.args[0])
    if count < 1 or [*turned.args[1]] != [0, 1, *pairs] or parts is None or not is_reshape(parts):
        return None
    shape = parts.meta.shape
    factors = shape[2 : 2 + count]
    if not all(isinstance(n, int) for n in shape[1 : 2 + count]) or shape[1] != node.meta.shape[1]:
        return None
    if not all(_times(*each) for each in zip(shape[2 + count :], factors, node.meta.shape[2:], strict=True)):
        return None
    return _repeated(r, node, parts.args[0], factors, shape[2 + count :])


def _repeated(r: Rewriter, node: Node, arg: Any, factors: Any, spatial: Any = None) -> _Found | None:
    """factors: of the channels that ``arg`` is. spatial: the sizes that those channels have."""
    repeat, channels = r.node(arg), node.meta.shape[1]
    if repeat is None or repeat.op != "repeat_interleave" or not r.read_once(arg):
        return None
    source, times = r.node(repeat.args[0]), repeat.args[1]
    if source is None or not isinstance(times, int) or [*repeat.args[2:3]] != [1] or not isinstance(channels, int):
        return None
    if len(node.meta.shape) != len(factors) + 2 or (spatial is not None and spatial != source.meta.shape[2:]):
        return None
    return _Found(repeat.args[0], tuple(factors), channels)


def _times(small: int | Size, factor: int | Size, large: int | Size) -> bool:
    """Is one size so many times the other, whatever the input's size is?"""
    named = sorted(symbols(small) | symbols(large))
    tried = [{name: value + 3 * n for n, name in enumerate(named)} for value in _TRIED]
    return all(evaluate(large, sizes) == evaluate(factor, sizes) * evaluate(small, sizes) for sizes in tried)
