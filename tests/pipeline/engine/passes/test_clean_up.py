"""Operations that change nothing, and nodes that no output needs, are removed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from one_op import CPU, OneOp, execute_strips, image
from small_functions import captured, run
from torch import Tensor, nn

from tvae.pipeline.engine.ir.graph import Graph, Meta, Node, Ref
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import remove_identities, remove_unused


def identities(m: nn.Module, x: Tensor) -> Tensor:
    h = F.dropout(m.conv(x).detach(), 0.3, training=False)
    h = (h / 1.0 + 0.0) * 1 - 0
    return h.to(torch.float32).type_as(x).contiguous() * 2


def changes(m: nn.Module, x: Tensor) -> Tensor:
    h = torch.div(m.conv(x) * 8, 1, rounding_mode="floor")
    h = 1 / (h + 0.5) + (h > 0) * 1.0
    return (h.to(torch.float64) * 1.0).type_as(x) - (h * 1).to(torch.int32) + (h > 0).add(0)


def no_frames(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x).detach()
    return torch.cat([h[:, :0], h, h[:, :0].exp()], 1) + torch.cat([h[:, :, :1], h[:, :, 1:]], 2)


def sliced(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    return h[:, :, :, :] * 2 + h[:, :1, :, :] + h[:, :, 1:, :].mean() + h[:, :, :, ::2].mean() + h[:, :, :-1].mean()


def reached(graph: Graph) -> list[str]:
    """Operations that the outputs depend on."""
    seen: set[int] = set()
    stack = list(graph.outputs)
    while stack:
        id_ = stack.pop()
        if id_ not in seen:
            seen.add(id_)
            node = graph.nodes[id_]
            stack += [a.id for a in node.args if isinstance(a, Ref)]
    return [graph.nodes[i].op for i in sorted(seen) if graph.nodes[i].kind == "call"]


def test_what_changes_nothing_is_taken_out_and_the_bits_stay() -> None:
    graph, module = captured(identities)
    done = remove_identities(graph)
    assert len(reached(done)) < len(reached(graph))
    assert set(reached(done)) <= {"conv2d", "contiguous", "mul"}
    x = torch.randn(1, 3, 7, 5)
    assert torch.equal(run(done, module.state_dict(), x), run(graph, module.state_dict(), x))


def test_slices_from_start_to_end_are_taken_out_and_others_stay() -> None:
    graph, module = captured(sliced)
    done = remove_identities(graph)
    assert reached(graph).count("slice") > reached(done).count("slice") == 4
    x = torch.randn(1, 3, 7, 5)
    assert torch.equal(run(done, module.state_dict(), x), run(graph, module.state_dict(), x))


def test_a_concatenation_of_one_value_and_nothing_is_that_value() -> None:
    graph, module = captured(no_frames)
    done = remove_identities(graph)
    x = torch.randn(1, 3, 7, 5)
    assert torch.equal(run(done, module.state_dict(), x), run(graph, module.state_dict(), x))
    assert [node.op for node in done.nodes if node.op == "cat"] == ["cat", "cat"]
    assert reached(done).count("add") == 1
    last = done.nodes[done.outputs[0]]
    assert done.nodes[last.args[0].id].op != "cat"
    assert done.nodes[last.args[1].id].op == "cat"


def test_what_changes_something_stays() -> None:
    graph, module = captured(changes)
    done = remove_identities(graph)
    x = torch.randn(1, 3, 7, 5)
    got = run(done, module.state_dict(), x)
    assert torch.equal(got, run(graph, module.state_dict(), x))
    torch.testing.assert_close(got, changes(module, x).detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("target", "args", "kwargs"),
    [
        ("aten.mul.Tensor", (Ref(0), 1.5), {}),
        ("aten.add.Tensor", (Ref(0), Ref(0)), {}),
        ("aten.mul.Tensor", (Ref(0), True), {}),
        ("aten.div.Tensor_mode", (Ref(0), 1), {"rounding_mode": "floor"}),
        ("aten.dropout.default", (Ref(0), 0.5, True), {}),
        ("aten.to.dtype", (Ref(0), torch.float16), {}),
        ("aten._to_copy.default", (Ref(0),), {"memory_format": torch.channels_last}),
        ("aten.pow.Tensor_Scalar", (Ref(0), 1), {}),
    ],
)
def test_only_identities_are_taken_out(target: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    dtype = torch.float16 if torch.float16 in args else torch.float32
    nodes = [
        Node("input", "x", outputs=(Meta((2, 3), torch.float32),)),
        Node("call", target, args, kwargs, outputs=(Meta((2, 3), dtype),)),
        Node("call", "aten.neg.default", (Ref(1),), outputs=(Meta((2, 3), dtype),)),
    ]
    assert remove_identities(Graph(nodes, [0], [2])).nodes[2].args == (Ref(1),)


def test_an_output_that_is_an_identity_becomes_its_operand() -> None:
    x = Node("input", "x", outputs=(Meta((2, 3), torch.float32),))
    node = Node("call", "aten.detach.default", (Ref(0),), outputs=(Meta((2, 3), torch.float32),))
    chain = Node("call", "aten.detach.default", (Ref(1),), outputs=(Meta((2, 3), torch.float32),))
    assert remove_identities(Graph([x, node, chain], [0], [2, 1, 0])).outputs == [0, 0, 0]


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
