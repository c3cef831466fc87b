"""Functions of a few layers, captured in float64, and what a pass makes of them: fewer operations, the same numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn

from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.ir.graph import Graph, Node
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import simplify
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute

Outputs = Tensor | tuple[Tensor, ...]
Fn = Callable[["Layers", Tensor], Outputs]
Pass = Callable[[Graph], Graph]


class Layers(nn.Module):
    """What the functions are made of: 4 channels in, 4 channels out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.mix = nn.Conv2d(4, 4, 3, padding=1)
        self.bare = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.point = nn.Conv2d(4, 4, 1)
        self.clip = nn.Conv3d(4, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.norm2 = nn.GroupNorm(4, 4)
        self.plain = nn.GroupNorm(1, 4, affine=False)
        self.gamma, self.beta = (nn.Parameter(torch.zeros(4, 1, 1)) for _ in range(2))
        self.deep = nn.Parameter(torch.zeros(4, 1, 1, 1))
        self.gain, self.shift, self.narrow = (nn.Parameter(torch.zeros(4)) for _ in range(3))
        self.wide = nn.Linear(4, 264)


@cache
def layers() -> Layers:
    """The layers, far from the identity."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.default_generator.manual_seed(11)
        module = Layers().double().eval()
        for weight in module.parameters():
            weight.copy_(torch.randn_like(weight) / 3)
        module.narrow = nn.Parameter(torch.randn(4).bfloat16())
    return module


def picture(*shape: int) -> Tensor:
    """Random numbers of this shape; by default a few rows of two pictures."""
    return torch.randn(shape or (2, 4, 7, 5), generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def graph_of(fn: Fn, x: Tensor) -> Graph:
    """The function's graph for inputs like this one, at any height and width."""
    module = layers()

    def call(t: Tensor) -> tuple[Tensor, ...]:
        out = fn(module, t)
        return out if isinstance(out, tuple) else (out,)

    return simplify(capture(module, call, [torch.zeros(*x.shape[:-2], 12, 10, dtype=x.dtype)]))


def results(graph: Graph, x: Tensor, strip: int) -> list[Tensor]:
    """The graph's outputs, strip by strip."""
    sizes = graph.bind([tuple(x.shape)])
    assert sizes is not None
    weights = {name: weight.detach() for name, weight in layers().named_parameters()}
    return execute(schedule(lower(graph, sizes, x.device), strip), [x], weights | graph.constants)


def live(graph: Graph) -> list[Node]:
    """The calls that the outputs depend on, in order."""
    needed = set(graph.outputs)
    for id_ in reversed(range(len(graph.nodes))):
        if id_ in needed:
            needed.update(graph.nodes[id_].reads)
    return [graph.nodes[i] for i in sorted(needed) if graph.nodes[i].kind == "call"]


def count(graph: Graph) -> Counter[str]:
    """How often each operation is called on the way to the outputs."""
    return Counter(node.op for node in live(graph))


def only(graph: Graph, op: str) -> Node:
    """The one live call of an operation."""
    (node,) = [node for node in live(graph) if node.op == op]
    return node


def rewritten(fn: Fn, rewrite: Pass, x: Tensor | None = None) -> Graph:
    """What a pass makes of a function's graph, held against the function itself in float64, at several strip heights.

    The pass must leave its argument alone, give a graph that survives the disk, and change no number run once more.
    """
    x = picture() if x is None else x
    graph = graph_of(fn, x)
    before = graph.to_json()
    done = rewrite(graph)
    assert graph.to_json() == before
    with torch.no_grad():
        out = fn(layers(), x)
    wanted = out if isinstance(out, tuple) else (out,)
    stored = Graph.from_json(done.to_json())
    for each, strip in ((stored, 1), (stored, 99), (rewrite(done), 3)):
        for n, (value, want) in enumerate(zip(results(each, x, strip), wanted, strict=True)):
            message = f"result {n} in strips of {strip}: {{}}".format
            torch.testing.assert_close(value, want, rtol=1e-12, atol=1e-12, msg=message)
    return done


@cache
def all_rewritten(rewrite: Pass, *fns: Fn, shape: tuple[int, ...] = ()) -> dict[Fn, Graph]:
    """``rewritten`` for many functions of one picture in one capture: for each, the graph with its results alone."""
    ends: list[int] = []

    def every(m: Layers, x: Tensor) -> tuple[Tensor, ...]:
        outputs: list[Tensor] = []
        ends.clear()
        for fn in fns:
            out = fn(m, x)
            outputs += out if isinstance(out, tuple) else [out]
            ends.append(len(outputs))
        return tuple(outputs)

    done = rewritten(every, rewrite, picture(*shape))
    return {
        fn: replace(done, outputs=done.outputs[first:last])
        for fn, first, last in zip(fns, [0, *ends], ends, strict=False)
    }


def expect(graph: Graph, counts: Mapping[str, int]) -> None:
    """So many live calls of each of these operations."""
    found = count(graph)
    assert {op: found[op] for op in counts} == dict(counts)


def name(fn: Fn) -> str:
    """A function's name, for the ids of tests."""
    return fn.__name__
