"""In-place operations: the same numbers as eager torch, or a refusal."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from small_functions import Fn, captured, run
from torch import Tensor, nn

from tvae.pipeline.engine.ir.graph import Graph, Meta, Node, Ref
from tvae.pipeline.engine.passes import functionalise, simplify
from tvae.pipeline.errors import UnsupportedOp


def exact(fn: Fn) -> None:
    """What comes out of the passes gives eager's numbers."""
    graph, module = captured(fn)
    x = torch.randn(1, 3, 7, 5)
    with torch.no_grad():
        want = fn(module, x.clone())
    torch.testing.assert_close(run(simplify(graph), module.state_dict(), x), want, rtol=1e-6, atol=1e-6)


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


def read_of_a_stale_broadcast(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    wide = torch.ops.aten.broadcast_to(h, [2, 3, *x.shape[2:]])
    h.add_(1.0)
    return wide * 2


def read_of_a_stale_part(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    first = h.tensor_split(3, dim=1)[0]
    h.add_(1.0)
    return first * 2


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
        (read_of_a_stale_broadcast, "changed in place"),
        (read_of_a_stale_part, "changed in place"),
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


@pytest.mark.parametrize("target", ["aten.alias.default", "aten.detach.default"])
def test_a_write_to_the_value_under_another_name_changes_the_value(target: str) -> None:
    meta = (Meta((2, 3), torch.float32),)
    nodes = [
        Node("input", "x", outputs=meta),
        Node("call", "aten.neg.default", (Ref(0),), outputs=meta),
        Node("call", target, (Ref(1),), outputs=meta),
        Node("call", "aten.add_.Tensor", (Ref(2), 1), outputs=meta),
    ]
    assert functionalise(Graph(nodes, [0], [2])).outputs == [3]
    with pytest.raises(UnsupportedOp, match="changed in place"):
        functionalise(Graph(nodes, [0], [1]))


def test_a_write_through_a_view_of_another_name_is_refused() -> None:
    meta = (Meta((2, 3), torch.float32),)
    nodes = [
        Node("input", "x", outputs=meta),
        Node("call", "aten.neg.default", (Ref(0),), outputs=meta),
        Node("call", "aten._unsafe_view.default", (Ref(1), (2, 3)), outputs=meta),
        Node("call", "aten.add_.Tensor", (Ref(2), 1), outputs=meta),
    ]
    with pytest.raises(UnsupportedOp, match="through a view"):
        functionalise(Graph(nodes, [0], [1]))


def test_the_pass_leaves_its_argument_alone() -> None:
    graph, _ = captured(add_twice)
    before = graph.to_json()
    assert functionalise(graph) is not graph
    assert graph.to_json() == before
