"""Writes in place, also through views, become values, or are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from small_functions import Fn, captured, run
from torch import Tensor, nn

from tvae.pipeline.engine.ir.graph import Graph, Meta, Node, Ref
from tvae.pipeline.engine.passes import functionalise, simplify
from tvae.pipeline.engine.passes.functionalise import _OVERLOADS
from tvae.pipeline.engine.rules import RULES
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


@pytest.mark.parametrize("wide", [True, False])
def test_a_write_of_a_wider_type_is_rounded_once(*, wide: bool) -> None:
    """In bfloat16 the product of rounded values is another; a single number of a wider type widens nothing."""

    def fn(m: nn.Module, x: Tensor) -> Tensor:
        h = m.conv(x).to(torch.bfloat16)
        h.mul_(x if wide else x.new_tensor(1.2345))
        h += m.conv(x) if wide else 1.0
        return h

    exact(fn)


def write_through_repeated_elements(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)[:, :1]
    h.expand(-1, 3, -1, -1).mul_(2.0)
    return h


def write_through_a_window(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    h.unfold(3, 2, 2).mul_(2.0)
    return h


def write_into_a_weight(m: nn.Module, x: Tensor) -> Tensor:
    m.conv.weight[0].mul_(0.5)
    return m.conv(x)


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (write_through_repeated_elements, "through a view"),
        (write_through_a_window, "through a view"),
        (write_into_a_weight, "conv.weight"),
    ],
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_what_cannot_be_made_functional_is_refused(fn: Fn, why: str) -> None:
    graph, _ = captured(fn)
    with pytest.raises(UnsupportedOp, match=why) as caught:
        functionalise(graph)
    assert "allow_whole" not in str(caught.value)


def write_through_the_same_value_under_another_name(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    same = h.contiguous()
    same.add_(1.0)
    return same * h


def write_through_a_cast_to_the_same_type(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    same = h.to(torch.float32)
    same.add_(1.0)
    return same * h


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
    assert functionalise(Graph(nodes, [0], [1])).outputs == [3]


def test_a_write_through_a_view_that_only_copies_no_element() -> None:
    meta = (Meta((2, 3), torch.float32),)
    nodes = [
        Node("input", "x", outputs=meta),
        Node("call", "aten.neg.default", (Ref(0),), outputs=meta),
        Node("call", "aten._unsafe_view.default", (Ref(1), (2, 3)), outputs=meta),
        Node("call", "aten.add_.Tensor", (Ref(2), 1), outputs=meta),
    ]
    done = functionalise(Graph(nodes, [0], [1, 2]))
    assert [n.op for n in done.nodes[2:]] == ["_unsafe_view", "add", "reshape"]
    assert done.outputs == [4, 3]


def test_the_pass_leaves_its_argument_alone() -> None:
    graph, _ = captured(add_twice)
    before = graph.to_json()
    assert functionalise(graph) is not graph
    assert graph.to_json() == before


def powers(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    h **= 2
    h.abs_().add_(0.1).pow_(x.sigmoid())
    return h


def whole_quotients(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x) * 9
    h //= x.abs() + 1
    h.floor_divide_(2)
    return h


@pytest.mark.parametrize("fn", [powers, whole_quotients])
def test_writes_whose_functional_forms_go_by_other_names(fn: Fn) -> None:
    exact(fn)


def test_every_write_has_a_functional_form() -> None:
    for name in set(RULES) - {"copy", "normal", "transpose"}:
        written, functional = (getattr(torch.ops.aten, n, None) for n in (f"{name}_", name))
        for overload in written.overloads() if written else ():
            takes = _types(written, overload)
            if takes[0] == "Tensor":  # others are of TorchScript's lists
                now = _OVERLOADS.get(f"{name}_.{overload}", f"{name}.{overload}").split(".")[1]
                assert _types(functional, now) == takes


def _types(operation: Any, overload: str) -> list[str]:
    return [str(argument.type) for argument in getattr(operation, overload)._schema.arguments]


def exact_views(fn: Fn) -> None:
    """What comes out of the passes gives eager's numbers."""
    graph, module = captured(fn)
    x = torch.randn(1, 3, 7, 5)
    with torch.no_grad():
        want = fn(module, x.clone())
    torch.testing.assert_close(run(simplify(graph), module.state_dict(), x), want, rtol=1e-5, atol=1e-5)


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


def rows_between_others(m: nn.Module, x: Tensor) -> Tensor:
    h = x.new_zeros(1, 3, 2 * x.shape[2], x.shape[3])
    h[:, :, ::2] = m.conv(x)
    h[:, :, 1::2].copy_(x)
    return h


def border_rows(m: nn.Module, x: Tensor) -> Tensor:
    h = x.new_empty(1, 3, x.shape[2] + 3, x.shape[3])
    h[:, :, 2:-1].copy_(m.conv(x))
    h[:, :, :2].fill_(0.5)
    h[:, :, -1] = x[:, :, 0] * 2
    return h


def a_row_of_another(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    h[:, :, 1:3] = h[:, :, 4:6] * 2
    h[:, :, 0] *= h[:, :, -1]
    return h


def parts_of_a_split(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    first, second = h.split([1, 2], 1)
    upper, lower = second.chunk(2, 3)
    lower.mul_(first[..., : lower.shape[-1]])
    F.silu(first, inplace=True)
    return h + upper.sum() + second[:, :1]


def rows_and_columns_of_a_part(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    part = h[:, 1:].transpose(2, 3)[:, 0]
    part[1:].clamp_(-0.2, 0.2)
    return h * 2 + part.sum()


def where_a_mask_says(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    h[h > 0.1] = -1.0
    h[:, torch.tensor([0, 2])] = 0.25
    return h


def copies_are_not_written_to(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    copy = h.permute(0, 2, 3, 1).reshape(1, -1)
    view = h.reshape(1, -1)
    wide, other = h.to(torch.float64), h.to(torch.float32, copy=True)
    view.mul_(3.0)
    copy.add_(1.0)
    return h + copy.sum() + wide.sum().float() + other


def the_same_memory_twice(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    a = h[:, :2]
    b = h.flatten(2)
    a.mul_(2.0)
    b.add_(a.sum())
    a[:, 0] = b[:, 2].view_as(a[:, 0])
    return h + a.sum() + b.view_as(h)


@pytest.mark.parametrize(
    "fn",
    [
        write_through_a_view,
        write_one_channel,
        read_of_a_stale_view,
        read_of_a_stale_view_of_a_view,
        return_of_a_stale_view,
        read_of_a_stale_broadcast,
        read_of_a_stale_part,
        write_through_dropout,
        rows_between_others,
        border_rows,
        a_row_of_another,
        parts_of_a_split,
        rows_and_columns_of_a_part,
        where_a_mask_says,
        copies_are_not_written_to,
        the_same_memory_twice,
    ],
    ids=lambda f: f.__name__,
)
def test_writes_through_views_keep_their_meaning(fn: Fn) -> None:
    graph, _ = captured(fn)
    before = graph.to_json()
    done = functionalise(graph)
    assert graph.to_json() == before
    done.check()
    assert not any(n.kind == "call" and n.op.endswith("_") for n in done.nodes)
    exact_views(fn)


VIEWS = {
    "channels": lambda h: h[:, 1:],
    "rows": lambda h: h[..., 1:4, :],
    "every other row": lambda h: h[..., ::2, :],
    "column": lambda h: h[..., 1:2],
    "turned": lambda h: h.transpose(-1, -2).transpose(-1, -2),
    "parts": lambda h: h.split(1, 1)[0],
    "in a row": lambda h: h.flatten(-2).unflatten(-1, h.shape[-2:]),
    "itself": lambda h: h,
}


WRITES = {
    "add": lambda v, other: v.add_(other),
    "scale": lambda v, other: v.mul_(0.5),
    "clamp": lambda v, other: v.clamp_(-0.3, 0.3),
    "zero": lambda v, other: v.zero_(),
    "fill": lambda v, other: v.fill_(0.25),
    "copy": lambda v, other: v.copy_(other),
}


@pytest.mark.long
@given(data=st.data())
@settings(max_examples=12)
def test_any_writes_through_any_views(data: st.DataObject) -> None:
    """Some views of one value and of each other; some writes through them; all of them are read at the end."""
    kinds = data.draw(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(sorted(VIEWS))), min_size=2, max_size=4))
    writes = data.draw(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(sorted(WRITES))), min_size=1, max_size=4))

    def fn(m: nn.Module, x: Tensor) -> Tensor:
        views = [m.conv(x)]
        for source, kind in kinds:
            views.append(VIEWS[kind](views[source % len(views)]))
        for target, kind in writes:
            WRITES[kind](views[target % len(views)], torch.tensor(0.7))
        return views[0] + sum(view.sum() * (n + 1) for n, view in enumerate(views))

    exact_views(fn)
