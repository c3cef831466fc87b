"""Segments, strips and buffers; and that the whole of it gives the untiled model's numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_but import slow_but
from small_models import (
    SMALL,
    Attention,
    Block,
    Bounded,
    Convolutions,
    Halved,
    LinearAttention,
    Nested,
    Noisy,
    Residual,
    Several,
    Spectrum,
    TwoNorms,
    built,
    eager,
    image,
    lower_type,
    planned,
    strips,
)
from torch import Tensor

from tvae.pipeline.engine.plan.bounds import owned
from tvae.pipeline.engine.plan.schedule import Schedule
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.errors import PlanError, UnsupportedOp

Kind = type[Block]
kinds = pytest.mark.parametrize("kind", SMALL, ids=lambda k: k.__name__)


@pytest.mark.parametrize(
    ("kind", "barriers"),
    [(Convolutions, 0), (Residual, 1), (LinearAttention, 1), (TwoNorms, 2), (Attention, 2)],
    ids=lambda p: getattr(p, "__name__", str(p)),
)
def test_barriers_cut_segments(kind: Kind, barriers: int) -> None:
    assert len(planned(kind, image(9), 2).segments) == 1 + barriers


class Modulated(Block):
    """Norm after norm, each scaled with a map of the input, as CogVideoX's decoder scales its own with the latents."""

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([x[:, :, :1], x[:, :, 1:]], 2)
        h = self.first(x)
        for norm in (self.norm, self.norm2, self.norm):
            h = self.mix(norm(h) * self.first(joined))
        return h


def test_maps_of_the_input_are_made_where_they_are_used() -> None:
    """The input is there all the time: neither they nor what they are made of is kept through the barriers before."""
    x = image(12)
    plan = planned(Modulated, x, 4)
    ops = plan.program.ops
    maps = [op for op in ops if "convolution" in op.name or "conv2d" in op.name]
    assert len(maps) == 7
    homes = {op.id: [n for n, segment in enumerate(plan.segments) if op.id in segment.body] for op in maps}
    assert sorted(n for found in homes.values() for n in found) == [0, 1, 1, 2, 2, 3, 3]
    kept = [i for i in plan.stored if ops[i].kind == "call"]
    assert len(kept) == 4  # what each of three norms is of, and the result
    (made,) = execute(plan, [x], dict(built(Modulated).named_parameters()))
    assert made is not None
    torch.testing.assert_close(made, eager(Modulated, x)[0], rtol=1e-12, atol=1e-12)


@given(rows=st.integers(1, 60), total=st.integers(1, 60), strip=st.integers(1, 70))
def test_owned_rows_cover_every_value_once(rows: int, total: int, strip: int) -> None:
    seen: list[int] = []
    for lo in range(0, total, strip):
        first, last = owned(rows, (lo, min(lo + strip, total)), total)
        seen += range(first, last)
    assert seen == list(range(rows))


@kinds
@given(height=st.integers(4, 15), strip=st.integers(1, 17))
@settings(max_examples=10)
def test_sinks_are_written_once_and_read_only_while_they_are_kept(kind: Kind, height: int, strip: int) -> None:
    plan = planned(kind, image(height), strip)
    check_buffers(plan)
    for segment in plan.segments:
        assert segment.strips[0][0] == 0
        assert segment.strips[-1][1] == height
        assert all(a[1] == b[0] for a, b in zip(segment.strips, segment.strips[1:], strict=False))
        assert all(hi - lo <= strip for lo, hi in segment.strips)


def check_buffers(plan: Schedule) -> None:
    """What a segment reads was made before it and not yet dropped; nothing is made twice; nothing is left over."""
    program, ops = plan.program, plan.program.ops
    kept = {o.id for o in ops if o.kind != "call"}
    made: set[int] = set()
    for segment in plan.segments:
        for id_ in segment.whole:
            assert set(ops[id_].inputs) <= kept | set(segment.whole)
            kept.add(id_)
        assert segment.reads <= kept
        assert not made & {*segment.sinks, *segment.whole}
        made |= {*segment.sinks, *segment.whole}
        for id_ in segment.body:
            for i in ops[id_].inputs:
                assert i in kept or i in segment.body, f"{ops[id_].name} reads {ops[i].name}, which is nowhere"
        kept |= set(segment.sinks)
        kept -= set(segment.drops)
    lasting = {*program.inputs, *program.outputs, *program.params}
    assert set(program.outputs) <= kept
    assert not {i for i in kept - lasting if ops[i].kind == "call"}, "a value is kept after its last use"


@kinds
@pytest.mark.parametrize("strip", [1, 2, 3, 5, 37])
def test_strips_give_the_untiled_numbers(kind: Kind, strip: int) -> None:
    for height in (7, 13):
        x = image(height)
        for got, want in zip(strips(kind, x, strip), eager(kind, x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", [Residual, Attention, Several], ids=lambda k: k.__name__)
def test_channels_last_gives_the_same_numbers(kind: Kind) -> None:
    x = image(9)
    for got, want in zip(strips(kind, x, 4, channels_last=True), eager(kind, x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", slow_but([torch.bfloat16], [torch.bfloat16, torch.float16]), ids=str)
@pytest.mark.parametrize("kind", [TwoNorms, Attention, LinearAttention], ids=lambda k: k.__name__)
def test_lower_types_are_as_near_to_float64_as_the_untiled_model(kind: Kind, dtype: torch.dtype) -> None:
    for strip in (1, 4):
        (got,), (untiled,), (want,) = lower_type(kind, image(21, 16), strip, dtype)
        assert got.dtype == dtype
        assert (got - want).norm() <= 1.02 * (untiled - want).norm()


def test_a_value_used_two_segments_later_is_kept_until_then() -> None:
    plan = planned(TwoNorms, image(9), 2)
    first = next(o.id for o in plan.program.ops if o.name == "conv2d")
    assert first in plan.stored
    assert first in plan.segments[0].sinks
    assert first in plan.segments[2].reads
    assert first in plan.segments[2].drops
    assert first not in plan.segments[1].drops


def test_what_is_cheap_is_made_again_and_not_stored() -> None:
    plan = planned(Residual, image(9), 2)
    names = {plan.program.ops[i].name for i in plan.stored if plan.program.ops[i].kind == "call"}
    assert names == {"conv2d", "add"}


def test_results_do_not_share_memory_that_a_later_strip_changes() -> None:
    x = image(9)
    h, y, *_ = strips(Several, x, 2)
    assert h.data_ptr() != y.data_ptr()


def test_noise_is_the_draw_of_the_untiled_model() -> None:
    x = image(9)
    torch.manual_seed(3)
    (want,) = eager(Noisy, x)
    for strip in (1, 4, 9):
        torch.manual_seed(3)
        (got,) = strips(Noisy, x, strip)
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", [Bounded, Nested, Halved, Spectrum], ids=lambda k: k.__name__)
@pytest.mark.parametrize("strip", [1, 4, 37])
def test_an_operation_without_a_rule_runs_whole_and_exactly_on_request(kind: Kind, strip: int) -> None:
    x = image(9)
    for got, want in zip(strips(kind, x, strip, allow_whole=True), eager(kind, x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    check_buffers(planned(kind, x, strip, allow_whole=True))


@pytest.mark.parametrize(
    ("kind", "op"), [(Bounded, "renorm"), (Halved, "renorm"), (Spectrum, "fft_rfft")], ids=lambda p: str(p)
)
def test_an_operation_without_a_rule_is_an_error_that_names_it(kind: Kind, op: str) -> None:
    with pytest.raises(UnsupportedOp, match=f"aten.{op}.default.*allow_whole") as caught:
        strips(kind, image(9), 2)
    assert caught.value.op == f"aten.{op}.default"
    assert "\n" not in str(caught.value)


def test_the_error_names_the_module_that_the_operation_came_from() -> None:
    with pytest.raises(UnsupportedOp, match=r"'tail\.1'") as caught:
        strips(Nested, image(9), 2)
    assert caught.value.module == "tail.1"


def test_a_strip_has_at_least_one_row() -> None:
    with pytest.raises(PlanError, match="at least one row"):
        planned(Residual, image(9), 0)


def test_independent_strips_would_be_wrong() -> None:
    """The negative control: the same model over strips that know nothing of each other."""
    x = image(12)
    (want,) = eager(Attention, x)
    with torch.no_grad():
        cut = torch.cat([built(Attention)(part) for part in x.split(3, 2)], 2)
    assert (cut - want).norm() / want.norm() > 0.1
    (got,) = strips(Attention, x, 3)
    assert (got - want).norm() / want.norm() < 1e-12
