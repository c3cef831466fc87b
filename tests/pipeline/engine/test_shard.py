"""One program over several ranks: the rows that each gives, put together, are what one device gives."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from one_op import OneOp
from random_graphs import random_graph
from shared_programs import put_together, run_ranks, same_as_everything, shared
from small_models import SMALL, Block, built, graph_of
from small_models import image as picture
from thread_ranks import ThreadExchange, together
from torch import Tensor, nn

from tvae.pipeline.engine.ir.program import Program, even_bands
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.cuts import optional_cuts
from tvae.pipeline.engine.plan.other_rank import of_rank
from tvae.pipeline.engine.plan.schedule import levels, movable, placed, schedule
from tvae.pipeline.engine.plan.shard import held_rows, own_rows, travels
from tvae.pipeline.engine.run.execute import execute


def drawn_bands(data: Any, rows: int, most: int = 4) -> tuple[tuple[int, int], ...]:
    """Bands of any heights, for two ranks or more where there are rows for them."""
    edges = data.draw(st.sets(st.integers(1, max(1, rows - 1)), min_size=min(1, rows - 1), max_size=most - 1))
    ends = [0, *sorted(e for e in edges if e < rows), rows]
    return tuple(itertools.pairwise(ends))


@given(data=st.data())
@settings(max_examples=2 * settings.default.max_examples)
def test_ranks_together_equal_everything_at_once(data: Any) -> None:
    """Whatever is connected to whatever, in bands and strips of any heights, cut and stored in any way."""
    g, program = random_graph(data, least=2)
    assume(all(op.reduction is None or op.reduction.join is not None for op in program.ops))  # others are not shared
    program = shared(program, drawn_bands(data, program.rows))
    strip = data.draw(st.integers(1, program.rows))
    cuts = data.draw(st.sampled_from([{}, optional_cuts(program, strip, levels(program), 1e6, 1e9)]))
    slides = range(20) if data.draw(st.booleans()) else ()
    plan = schedule(program, strip, None, cuts, slides=slides)
    away = {i: data.draw(st.sampled_from(["host", "disk", None, None])) for i in movable(plan)}
    defer = data.draw(st.booleans())
    plan = placed(plan, {i: place for i, place in away.items() if place}, defer=defer)
    same_as_everything(plan, g, run_ranks(plan, g.inputs(), g.weights, channels_last=data.draw(st.booleans())))


@pytest.mark.parametrize("kind", SMALL, ids=lambda k: k.__name__)
@pytest.mark.parametrize("bands", [((0, 7), (7, 24)), ((0, 8), (8, 9), (9, 24))], ids=["two", "three"])
def test_models_give_the_same_on_several_ranks(kind: type[Block], bands: tuple[tuple[int, int], ...]) -> None:
    """Norms, means, attention and resampling, in strips inside uneven bands."""
    graph, weights = graph_of(kind), dict(built(kind).named_parameters()) | graph_of(kind).constants
    x = picture(24, 6)
    sizes = graph.bind([tuple(x.shape)])
    assert sizes is not None
    plan = schedule(shared(lower(graph, sizes, x.device), bands), 5)
    wanted = built(kind)(x)
    for got, want in zip(put_together(plan, run_ranks(plan, [x], weights)), flat(wanted), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def flat(outputs: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else [*outputs]


def example(height: int = 16) -> tuple[Program, dict[str, Tensor], nn.Sequential]:
    """The network of the engine's README."""
    net = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Conv2d(8, 4, 3, padding=1)).double()
    g = OneOp(height, 10)
    x = g.input(1, 4, "h", "w")
    names = ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]
    values = dict(net.named_parameters())
    w0, b0, w1, b1, w2, b2 = (g.param(*values[name].shape, value=values[name].detach()) for name in names)
    first = g.call("conv2d.default", x, w0, b0, [1, 1], [1, 1], shape=(1, 8, "h", "w"))
    norm = g.call("group_norm.default", first, 2, w1, b1, 1e-5)
    g.gives(g.call("conv2d.default", norm, w2, b2, [1, 1], [1, 1], shape=(1, 4, "h", "w")))
    return lower(g.graph, g.sizes, torch.device("cpu")), g.weights, net


def test_exactly_the_rows_that_strips_read_travel() -> None:
    """A convolution of 3x3 reads one row of each neighbour: of the buffer between the two segments, and no other."""
    program, weights, net = example()
    plan = schedule(shared(program, ((0, 5), (5, 12), (12, 16))), 4)
    sent: list[list[tuple[int, int, Tensor]]] = []
    x = torch.randn(1, 4, 16, 10, dtype=torch.double)

    def one(exchange: ThreadExchange) -> list[Any]:
        sent.append(exchange.sent)  # all ranks have one list, which others may add to when this one has ended
        return execute(of_rank(plan, exchange.rank), [x], weights, exchange=exchange)

    results = together(3, one)
    a_row = 8 * 10 * torch.double.itemsize
    assert sorted((a, b, t.nbytes) for a, b, t in sent[0]) == [
        (a, b, a_row) for a, b in [(0, 1), (1, 0), (1, 2), (2, 1)]
    ]
    torch.testing.assert_close(put_together(plan, results)[0], net(x))
    held = [held_rows(plan.program, plan.segments, rank) for rank in range(3)]
    (buffer,) = {i for segment in plan.segments for i in segment.sinks if i in held[0]} - {*program.outputs}
    assert [its[buffer] for its in held] == [(0, 6), (4, 13), (11, 16)]
    assert [its[program.inputs[0]] for its in held] == [(0, 6), (4, 13), (11, 16)]
    assert [its[program.outputs[0]] for its in held] == [(0, 5), (5, 12), (12, 16)]


def test_an_input_may_be_the_rows_that_a_rank_holds() -> None:
    program, weights, net = example()
    plan = schedule(shared(program, ((0, 5), (5, 12), (12, 16))), 16)
    x = torch.randn(1, 4, 16, 10, dtype=torch.double)

    def one(exchange: ThreadExchange) -> list[Any]:
        mine = of_rank(plan, exchange.rank)
        lo, hi = mine.rooms[program.inputs[0]]
        return execute(mine, [x[:, :, lo:hi].clone()], weights, exchange=exchange)

    torch.testing.assert_close(put_together(plan, together(3, one))[0], net(x))


def test_statistics_are_the_same_bits_on_all_ranks() -> None:
    """A whole value that is made of them is an output here; ``put_together`` compares it."""
    g = OneOp(23, 5)
    x = g.input(2, 4, "h", "w")
    mean = g.call("mean.dim", x, [2, 3], True, shape=(2, 4, 1, 1))
    most = g.call("amax.default", x, [2, 3], True, shape=(2, 4, 1, 1))
    g.gives(mean, most)
    plan = schedule(shared(lower(g.graph, g.sizes, torch.device("cpu")), ((0, 9), (9, 10), (10, 23))), 4)
    same_as_everything(plan, g, run_ranks(plan, g.inputs(), g.weights))


def test_noise_is_that_of_the_first_rank() -> None:
    """Drawn whole, as one process draws it, whatever the states of the others' generators."""
    g = OneOp(11, 5)
    x = g.input(1, 2, "h", "w")
    noise = g.call("randn_like.default", x)
    g.gives(g.call("add.Tensor", x, noise))
    plan = schedule(shared(lower(g.graph, g.sizes, torch.device("cpu")), ((0, 6), (6, 11))), 4)

    def one(exchange: ThreadExchange) -> list[Any]:
        seeded = torch.Generator().manual_seed(5 + exchange.rank)
        return execute(of_rank(plan, exchange.rank), g.inputs(), g.weights, seeded, exchange=exchange)

    alone = schedule(replace(plan.program, ranks=None), 4)
    want = execute(alone, g.inputs(), g.weights, torch.Generator().manual_seed(5))
    assert torch.equal(put_together(plan, together(2, one))[0], want[0])


@given(data=st.data())
def test_what_one_sends_the_other_expects(data: Any) -> None:
    ends = sorted(data.draw(st.lists(st.integers(0, 30), min_size=2, max_size=5)))
    own = list(zip([0, *ends[:-1]], ends, strict=True))
    held = []
    for lo, hi in own:
        first, last = sorted(data.draw(st.lists(st.integers(0, ends[-1]), min_size=2, max_size=2)))
        held.append((min(first, lo), max(last, hi)))
    for a in range(len(own)):
        for b in range(len(own)):
            out = [rows for peer, *rows in travels(own, held, a)[0] if peer == b]
            into = [rows for peer, *rows in travels(own, held, b)[1] if peer == a]
            assert out == into
    for rank, (first, last) in enumerate(held):
        there = {row for _, lo, hi in travels(own, held, rank)[1] for row in range(lo, hi)}
        assert there | {*range(*own[rank])} == {*range(first, last)}
        assert not there & {*range(*own[rank])}


@pytest.mark.parametrize(("rows", "unit", "ranks", "want"), [
    (16, 1, 3, ((0, 5), (5, 11), (11, 16))),
    (1024, 8, 3, ((0, 344), (344, 680), (680, 1024))),
    (17, 4, 2, ((0, 8), (8, 17))),
    (2, 1, 4, ((0, 1), (1, 2))),
    (3, 8, 2, ((0, 3),)),
])  # fmt: skip
def test_even_bands_are_of_whole_latent_rows(rows: int, unit: int, ranks: int, want: tuple[Any, ...]) -> None:
    assert even_bands(rows, unit, ranks) == want


@given(rows=st.integers(1, 50), shares=st.lists(st.floats(0.01, 9), min_size=1, max_size=5))
def test_no_band_is_empty(rows: int, shares: list[float]) -> None:
    bands = even_bands(rows, 1, len(shares), shares)
    assert bands[0][0] == 0
    assert bands[-1][1] == rows
    assert len(bands) == min(rows, len(shares))
    assert all(a < b for a, b in bands)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(bands))


def test_own_rows_cover_every_value_once() -> None:
    program, *_ = example(13)
    plan = schedule(shared(program, ((0, 4), (4, 5), (5, 13))), 13)
    own = [own_rows(plan.program, plan.segments, rank) for rank in range(3)]
    for id_ in own[0]:
        covered = [row for its in own for row in range(*its[id_])]
        assert covered == [*range(program.ops[id_].axis.rows)]
