"""Passes for operations that compare every vector with many keys: attention of one head that is wide or sees no later
frames, and the nearest code of a table.

PyTorch has no fast kernel for wide heads. A mask that lets every frame see itself and the frames before is a prefix of
the keys, and is never made. What a mask does is found by making it at small sizes: its graph depends on nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Graph, Node, Ref, map_refs
from tvae.pipeline.engine.ir.op_facts import resolve
from tvae.pipeline.engine.ir.sizes import Size, evaluate
from tvae.pipeline.engine.passes.rewriter import Rewriter

_NARROW = 256
"""Heads up to this depth have PyTorch's own flash attention."""
_PROBES = (2, 3, 4, 5, 8, 9, 16, 17, 24, 32, 33, 48)
"""Sizes at which a mask is made."""
_LARGEST_PROBE, _ENOUGH_PROBES = 4096, 4
"""Tokens of a probe at most (its mask is the square of that), and how many probes tell one mask from another."""
_DISTANCES = ("cdist", "_cdist_forward", "_euclidean_dist")


def use_wide_attention(graph: Graph) -> Graph:
    """scaled_dot_product_attention of one head, wider than 256 or under a frame-causal mask ->
    ``tvae.wide_attention``."""
    r = Rewriter(graph)
    for id_, node in r.nodes():
        frames = _frames(r.graph, node) if node.op == "scaled_dot_product_attention" and _is_one_head(r, node) else None
        depth = node.meta.shape[-1] if frames is not None else 0
        if frames is None or (frames == 1 and isinstance(depth, int) and depth <= _NARROW):
            continue
        assert isinstance(depth, int)
        scale = node.kwargs.get("scale") or depth**-0.5
        r.replace(id_, "wide_attention", *r.renamed(node.args[:3]), scale, frames)
    return r.done()


def _is_one_head(r: Rewriter, node: Node) -> bool:
    operands = [r.node(a) for a in node.args[:3]]
    shapes = [o.meta.shape for o in operands if o is not None]
    depth = {s[-1] for s in shapes}
    plain = not any(node.args[4:]) and not node.kwargs.keys() - {"scale", "attn_mask"}
    alike = len(depth) == 1 and len({s[0] for s in shapes}) == 1  # neither keys nor values are broadcast
    known = all(isinstance(d, int) for d in depth)
    return plain and known and alike and all(len(s) == 4 and s[1] == 1 for s in shapes) and len(shapes) == 3


def _frames(graph: Graph, node: Node) -> int | Size | None:
    """Return 1 without a mask, the number of frames of a frame-causal one, None for any other."""
    mask = node.args[3] if len(node.args) > 3 and node.args[3] is not None else node.kwargs.get("attn_mask")
    if mask is None:
        return 1
    made_from = _ancestors(graph, mask.id)
    if made_from is None:
        return None
    tokens, candidates = node.meta.shape[2], _sizes(graph, made_from)
    probes = list(_served(graph, tokens))
    for sizes in probes:
        frames = _prefix_frames(_value(graph, made_from, sizes))
        candidates = [size for size in candidates if frames is not None and evaluate(size, sizes) == frames]
    return candidates[0] if probes and candidates else None


def _ancestors(graph: Graph, id_: int) -> list[int] | None:
    """Return the nodes that a value is made from, itself the last; None if inputs or weights are among them."""
    needed, stack = set(), [id_]
    while stack:
        at = stack.pop()
        if at in needed:
            continue
        if graph.nodes[at].kind != "call":
            return None
        needed.add(at)
        stack += graph.nodes[at].reads
    return sorted(needed)


def _sizes(graph: Graph, ids: list[int]) -> list[int | Size]:
    """Return all sizes of some values; the number of frames is among those that the mask was made from."""
    shapes = [size for i in ids for meta in graph.nodes[i].outputs for size in meta.shape]
    return list(dict.fromkeys([*shapes, 1]))


def _served(graph: Graph, tokens: int | Size) -> Iterator[dict[str, int]]:
    """Yield a few small sizes that the graph serves, drawn so that any two symbols differ in some of them."""
    symbols = sorted({s.expr for i in graph.inputs for s in graph.nodes[i].meta.shape if isinstance(s, Size)})
    combinations = list(product(_PROBES, repeat=len(symbols)))
    random.Random(0).shuffle(combinations)
    count = 0
    for numbers in combinations:
        sizes = dict(zip(symbols, numbers, strict=True))
        if graph.serves(sizes) and 0 < evaluate(tokens, sizes) <= _LARGEST_PROBE:
            yield sizes
            count += 1
            if count == _ENOUGH_PROBES:
                return


def _value(graph: Graph, made_from: list[int], sizes: dict[str, int]) -> Tensor:
    """Compute the last of some nodes that depend on nothing else."""
    values: dict[int, Any] = {}
    for at in made_from:
        node = graph.nodes[at]

        def leaf(arg: Any) -> Any:
            if isinstance(arg, Ref):
                return values[arg.id]
            return evaluate(arg, sizes) if isinstance(arg, Size) else torch.device("cpu")

        args, kwargs = map_refs((node.args, node.kwargs), leaf)
        values[at] = args[0][args[1]] if node.op == "getitem" else resolve(node.target)(*args, **kwargs)
    value: Tensor = values[made_from[-1]]
    return value


def _prefix_frames(mask: Tensor) -> int | None:
    """Return T of a mask over T·n tokens that lets each see its own frame and those before, None for any other."""
    if mask.shape[0] != 1 or mask.ndim != 4 or mask.shape[1] != 1 or mask.shape[2] != mask.shape[3]:
        return None
    allowed = mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] == 0
    if mask.dtype != torch.bool and not torch.equal(~allowed, mask[0, 0] == float("-inf")):
        return None
    tokens = allowed.shape[0]
    first = int(allowed[0].sum())
    if not first or tokens % first:
        return None
    frame = torch.arange(tokens) // first
    return tokens // first if torch.equal(allowed, frame[:, None] >= frame[None, :]) else None


def fuse_nearest_code(graph: Graph) -> Graph:
    """argmin of the Euclidean distances between vectors [n, C] and codes [m, C] -> ``tvae.nearest_code``.

    The distances, as many as vectors times codes, are then never all there, and they are computed in float64.
    """
    r = Rewriter(graph)
    for id_, node in r.nodes():
        distances = r.node(node.args[0]) if _takes_smallest(node) and r.read_once(node.args[0]) else None
        if distances is not None and _is_euclidean(distances):
            r.replace(id_, "nearest_code", *r.renamed(distances.args[:2]))
    return r.done()


def _takes_smallest(node: Node) -> bool:
    """True for an argmin over the codes that drops their dimension."""
    options = [*node.args[1:], *node.kwargs.values()]
    return node.kind == "call" and node.op == "argmin" and options[:1] in ([1], [-1]) and not any(options[1:])


def _is_euclidean(node: Node) -> bool:
    euclidean = node.kind == "call" and node.op in _DISTANCES and (len(node.args) < 3 or node.args[2] == 2)
    return euclidean and not node.kwargs and len(node.meta.shape) == 2
