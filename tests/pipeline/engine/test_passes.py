"""Rewrites of the graph: the same numbers as eager torch, or a refusal."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tvae.pipeline.engine.capture import capture
from tvae.pipeline.engine.execute import execute
from tvae.pipeline.engine.graph import Graph, Meta, Node, Ref
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import functionalise, remove_identities, simplify
from tvae.pipeline.engine.passes.functionalise import functionalise as one_pass
from tvae.pipeline.engine.schedule import schedule
from tvae.pipeline.errors import UnsupportedOp

Fn = Callable[[nn.Module, Tensor], Tensor]


class Small(nn.Module):
    """A convolution for functions to call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 3, 3, padding=1)


def run(graph: Graph, weights: Mapping[str, Tensor], x: Tensor, strip: int = 3) -> Tensor:
    sizes = graph.bind([tuple(x.shape)])
    assert sizes is not None
    program = lower(graph, sizes, x.device)
    return execute(schedule(program, strip), [x], {**weights, **graph.constants})[0]


def captured(fn: Fn) -> tuple[Graph, nn.Module]:
    module = Small().eval()
    return capture(module, lambda x: [fn(module, x)], [torch.zeros(1, 3, 6, 6)]), module


def exact(fn: Fn) -> None:
    """What comes out of the passes gives eager's numbers."""
    graph, module = captured(fn)
    x = torch.randn(1, 3, 7, 5)
    with torch.no_grad():
        want = fn(module, x.clone())
    torch.testing.assert_close(run(simplify(graph), module.state_dict(), x), want, rtol=1e-6, atol=1e-6)


# -- functionalise -----------------------------------------------------------------------------------------------------
def add_then_read(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    h.add_(1.0)
    return h * x


def add_twice(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    h += x
    h *= h
    F.silu(h, inplace=True)
    return h + x


def read_before_and_after(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    before = h * 2
    h.sub_(3.0)
    return before + h


def result_and_operand(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    g = F.relu(h, inplace=True)
    return g + h


def changed_in_a_row(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    g = h.mul_(2.0)
    g.add_(1.0)
    return h - g * x


def view_made_after(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    h.add_(1.0)
    return h.flatten(2).transpose(1, 2) * 2


def view_read_before(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    mean = h.flatten(2).mean()
    h.add_(1.0)
    return h - mean


def contiguous_copy_changed(m: nn.Module, x: Tensor) -> Tensor:
    h = x.permute(0, 1, 3, 2).contiguous()
    h.add_(1.0)
    return h.permute(0, 1, 3, 2) + x


def cast_changed(m: nn.Module, x: Tensor) -> Tensor:
    h = x.to(torch.float64)
    h.add_(1.0)
    return h.to(torch.float32) + x


@pytest.mark.parametrize(
    "fn",
    [
        add_then_read,
        add_twice,
        read_before_and_after,
        result_and_operand,
        changed_in_a_row,
        view_made_after,
        view_read_before,
        contiguous_copy_changed,
        cast_changed,
    ],
    ids=lambda f: f.__name__,
)
def test_in_place_operations_keep_their_meaning(fn: Fn) -> None:
    graph, _ = captured(fn)
    done = functionalise(graph)
    assert any(n.kind == "call" and n.op.endswith("_") for n in graph.nodes)
    assert not any(n.kind == "call" and n.op.endswith("_") for n in done.nodes)
    exact(fn)


def write_through_a_view(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    h.view(1, -1).add_(1.0)
    return h


def write_one_channel(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    h[:, 0] = 0.0
    return h


def read_of_a_stale_view(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    flat = h.flatten(2)
    h.add_(1.0)
    return flat * 2


def read_of_a_stale_view_of_a_view(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    turned = h.flatten(2).transpose(1, 2)
    h.add_(1.0)
    return turned * 2


def return_of_a_stale_view(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    flat = h.flatten(2)
    h.add_(1.0)
    return flat


def write_through_the_same_value_under_another_name(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    same = h.contiguous()
    same.add_(1.0)
    return same * h


def write_through_dropout(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    same = F.dropout(h, 0.5, training=False)
    same.add_(1.0)
    return same * h


def write_through_a_cast_to_the_same_type(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    same = h.to(torch.float32)
    same.add_(1.0)
    return same * h


def write_of_a_wider_type(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x).to(torch.float16)
    h.mul_(x)
    return h


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (write_through_a_view, "through a view"),
        (write_one_channel, "through a view"),
        (read_of_a_stale_view, "changed in place"),
        (read_of_a_stale_view_of_a_view, "changed in place"),
        (return_of_a_stale_view, "changed in place"),
        (write_through_dropout, "changed in place"),
        (write_of_a_wider_type, "type"),
    ],
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_what_cannot_be_made_functional_is_refused(fn: Fn, why: str) -> None:
    graph, _ = captured(fn)
    with pytest.raises(UnsupportedOp, match=why) as caught:
        functionalise(graph)
    assert "allow_whole" not in str(caught.value)


@pytest.mark.parametrize("fn", [write_through_the_same_value_under_another_name, write_through_a_cast_to_the_same_type])
def test_another_name_that_the_exporter_sees_through(fn: Fn) -> None:
    exact(fn)


def test_a_result_changed_after_it_was_made_is_the_changed_one() -> None:
    meta = (Meta((2, 3), torch.float32),)
    nodes = [
        Node("input", "x", outputs=meta),
        Node("call", "aten.neg.default", (Ref(0),), outputs=meta),
        Node("call", "aten.add_.Tensor", (Ref(1), 1), outputs=meta),
    ]
    done = functionalise(Graph(nodes, [0], [1, 2, 0]))
    assert done.outputs == [2, 2, 0]
    assert done.nodes[2].target == "aten.add.Tensor"


def test_the_pass_leaves_its_argument_alone() -> None:
    graph, _ = captured(add_twice)
    before = graph.to_json()
    assert one_pass(graph) is not graph
    assert graph.to_json() == before


# -- identities --------------------------------------------------------------------------------------------------------
def identities(m: nn.Module, x: Tensor) -> Tensor:
    h = F.dropout(m.conv(x).detach(), 0.3, training=False)
    h = (h / 1.0 + 0.0) * 1 - 0
    return h.to(torch.float32).contiguous() * 2


def changes(m: nn.Module, x: Tensor) -> Tensor:
    h = torch.div(m.conv(x) * 8, 1, rounding_mode="floor")
    h = 1 / (h + 0.5) + (h > 0) * 1.0
    return (h.to(torch.float64) * 1.0).to(torch.float32) - (h * 1).to(torch.int32) + (h > 0).add(0)


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
