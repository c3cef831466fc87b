"""Writes through views: the same numbers as eager torch, whatever was viewed and read before and after."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from small_functions import Fn, captured, run
from torch import Tensor, nn

from tvae.pipeline.engine.passes import functionalise, simplify


def exact(fn: Fn) -> None:
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
    exact(fn)


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

    exact(fn)
