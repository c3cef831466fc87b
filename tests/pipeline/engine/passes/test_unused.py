"""Nodes that no output needs: gone, but for inputs and noise; everything else keeps its order and its operands."""

from __future__ import annotations

import torch
from one_op import CPU, OneOp, execute_strips, image

from tvae.pipeline.engine.ir.graph import Graph, Meta, Node, Ref
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import remove_unused

META = (Meta((2, 3), torch.float32),)


def test_what_no_output_needs_is_taken_out_and_the_rest_is_renumbered() -> None:
    nodes = [
        Node("param", "unused", outputs=META),
        Node("input", "x", outputs=META),
        Node("param", "w", outputs=META),
        Node("call", "aten.neg.default", (Ref(1),), outputs=META),
        Node("call", "aten.exp.default", (Ref(3),), outputs=META),
        Node("call", "aten.cat.default", ([Ref(1), Ref(2)],), {"out": (Ref(2),)}, outputs=META),
        Node("call", "aten.abs.default", (Ref(5),), outputs=META),
    ]
    graph = Graph(nodes, [1], [6, 1], ["h > 2"], "h", {"w": torch.zeros(1)})
    before = graph.to_json()
    done = remove_unused(graph)
    assert graph.to_json() == before
    assert [n.target for n in done.nodes] == ["x", "w", "aten.cat.default", "aten.abs.default"]
    assert (done.nodes[2].args, done.nodes[2].kwargs) == (([Ref(0), Ref(1)],), {"out": (Ref(1),)})
    assert done.nodes[3].args == (Ref(2),)
    assert (done.inputs, done.outputs) == ([0], [3, 0])
    assert (done.guards, done.row_symbol, set(done.constants)) == (["h > 2"], "h", {"w"})


def test_an_input_that_nothing_reads_stays() -> None:
    nodes = [Node("input", n, outputs=META) for n in ("x", "y", "z")]
    done = remove_unused(Graph(nodes, [0, 1, 2], [2]))
    assert [n.target for n in done.nodes] == ["x", "y", "z"]
    assert done.inputs == [0, 1, 2]


def test_noise_that_nothing_reads_is_drawn_all_the_same() -> None:
    """The model draws it before the noise that is read: without it the second draw would be the first."""
    g = OneOp(5, 3)
    x = image(g)
    g.call("neg.default", g.call("tanh.default", x))
    torch.manual_seed(7)
    shape = [g.number(s) for s in g.shape_of(x)]
    first, second = (torch.randn(shape, dtype=torch.float64) for _ in range(2))
    refs = []
    for draw in (first, second):
        refs.append(g.call("randn_like.default", x))
        g.values[refs[-1].id] = draw
    g.call("exp.default", refs[0])
    made = g.call("add.Tensor", x, refs[1])
    done = remove_unused(g.gives(made).graph)
    assert [n.op for n in done.nodes] == ["in0", "randn_like", "randn_like", "add"]
    execute_strips(lower(done, g.sizes, CPU), g, 2)


def test_results_with_several_parts_keep_their_source() -> None:
    g = OneOp(5, 3)
    parts = g.call("chunk.default", image(g), 2, 1, shape=[(2, 2, "h", "w")] * 2)
    g.part(parts, 1)
    kept = g.part(parts, 0)
    done = remove_unused(g.gives(kept).graph)
    assert [n.op for n in done.nodes] == ["in0", "chunk", "getitem"]
    execute_strips(lower(done, g.sizes, CPU), g, 2)


def test_nothing_to_do_changes_nothing() -> None:
    g = OneOp(4, 3)
    graph = g.gives(g.call("exp.default", image(g))).graph
    assert remove_unused(graph).to_json() == graph.to_json()
