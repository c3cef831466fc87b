"""Which buffers a plan moves off the device, and the time that this is estimated to take."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from large_programs import HEIGHTS, kinds, large, program_of
from one_op import OneOp
from one_op import image as picture
from resnet import convolved, normed, summed
from small_models import Block, TwoNorms, built, eager, graph_of, image
from torch import Tensor

from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan import planner, smaller
from tvae.pipeline.engine.plan.footprint import footprint
from tvae.pipeline.engine.plan.known import Known
from tvae.pipeline.engine.plan.machine import CPU, CUDA, Machine, seconds
from tvae.pipeline.engine.plan.planner import fitting, least
from tvae.pipeline.engine.plan.schedule import Schedule, movable, schedule
from tvae.pipeline.engine.run.execute import execute


def nested() -> Program:
    """Where most is alive: six buffers of one size and one of a quarter of it; later a single one of twice the size."""
    g = OneOp(128, 32)
    x = picture(g, 4, 1)
    kept = [convolved(g, x)]
    slim = g.call("conv2d.default", kept[0], g.param(1, 4, 3, 3), None, [1, 1], [1, 1], shape=(1, 1, "h", "w"))
    for _ in range(5):
        kept.append(convolved(g, normed(g, kept[-1])))
    total = kept[-1]
    for other in kept[:-1]:
        total = summed(g, convolved(g, normed(g, total)), other)
    total = g.call("mul.Tensor", total, slim)
    up = g.call("upsample_nearest2d.vec", total, None, [2.0, 1.0], shape=(1, 4, "2*h", "w"))
    g.gives(g.call("mean.dim", normed(g, convolved(g, up)), [1], True, shape=(1, 1, "2*h", "w")))
    return lower(g.graph, g.sizes, torch.device("cpu"))


def test_what_goes_is_large_and_in_the_way() -> None:
    """A buffer that is alive when memory is fullest, whatever is larger at other times; one more as the need grows."""
    program = nested()
    here = schedule(program, 8)
    cost, sizes = footprint(here), {i: program.ops[i].bytes for i in movable(here)}
    fullest = max(range(len(cost.segments)), key=lambda n: cost.segments[n].stored + cost.segments[n].strip)
    made = {i: n for n, segment in enumerate(here.segments) for i in segment.sinks}
    dropped = {i: n for n, segment in enumerate(here.segments) for i in segment.drops}
    alive = {i for i in sizes if made[i] <= fullest <= dropped[i]}
    assert len(alive) > 4
    assert max(sizes.values()) == 2 * max(sizes[i] for i in alive) == 8 * min(sizes[i] for i in alive)
    room = cost.device - 1 - least(program, (8,), CPU, {})
    gone = [fitting(program, (8,), cost.device - 1 - room * part // 10, CPU).places.keys() for part in range(11)]
    first = next(ids for ids in gone if ids)
    assert first <= alive
    assert min(sizes[i] for i in first) == max(sizes[i] for i in alive)
    assert [len(ids) for ids in gone] == sorted(len(ids) for ids in gone)
    assert len(first) < len(gone[5]) < len(gone[10])


def without_barriers() -> Program:
    """Twelve convolutions in a row: strips compute much of each other, unless they are cut."""
    g = OneOp(512, 64)
    x = picture(g, 4, 1)
    for _ in range(12):
        x = convolved(g, x)
    g.gives(g.call("mean.dim", x, [1], True, shape=(1, 1, "h", "w")))
    return lower(g.graph, g.sizes, torch.device("cpu"))


def test_optional_cuts_stay_when_buffers_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    program, every_way = without_barriers(), planner.ways
    for module in (planner, smaller):
        monkeypatch.setattr(module, "ways", lambda *what: [way for way in every_way(*what) if not way.slide])
    machine = Machine(1e6, CPU.memory, CPU.link, CPU.start, "disk")  # computing twice is dear
    uncut = schedule(program, 8)
    cut = fitting(program, (8,), None, machine)
    assert len(cut.segments) > len(uncut.segments) == 1
    assert not cut.places
    every = [
        (plan, cost.device)
        for way in planner.ways(program, 8, machine, {})
        for plan, cost in smaller.ever_smaller(program, 8, machine, {}, way, frozenset(), Known())
    ]
    assert {len(plan.segments) for plan, _ in every if plan.places} == {len(cut.segments)}
    assert min(size for _, size in every) == least(program, (8,), machine, {})
    tight = fitting(program, (8,), min(size for plan, size in every if plan.places), machine)
    assert tight.places
    assert len(tight.segments) == len(cut.segments)


def test_what_costs_less_to_make_again_is_not_carried_away() -> None:
    """A convolution is cheaper than a slow link; where computing is slow the same value is moved. Same numbers."""
    program, x = program_of(TwoNorms, 48, 10), image(48, 10)
    weights = dict(built(TwoNorms).named_parameters()) | graph_of(TwoNorms).constants
    (want,) = eager(TwoNorms, x)
    swift = Machine(1e15, 1e12, 1e6, 1e-9, "host")
    slow = Machine(1e5, 1e12, 1e9, 1e-9, "host")
    whole = schedule(program, 4)
    budget = footprint(schedule(program, 4, dict.fromkeys(movable(whole)[:1], "host"))).device
    made, moved = (fitting(program, (4,), budget, machine) for machine in (swift, slow))
    assert len(made.stored) < len(whole.stored)
    assert not made.places
    assert moved.stored >= whole.stored
    assert moved.places
    assert footprint(made).work > footprint(whole).work
    for plan in (made, moved):
        assert footprint(plan).device <= budget
        (got,) = execute(plan, [x], weights)
        assert got is not None
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_what_the_host_cannot_take_goes_to_disk() -> None:
    program = large(TwoNorms)
    machine = Machine(1e5, 1e12, 1e10, 1e-9, "host")  # too slow to make anything again
    few = least(program, (4,), machine, {})
    free = fitting(program, (4,), few, machine)
    assert set(free.places.values()) == {"host"}
    for room in (0, footprint(free).host // 2, footprint(free).host):
        plan = fitting(program, (4,), few, replace(machine, host=room))
        cost = footprint(plan)
        assert cost.host <= room
        assert cost.device <= few
        assert cost.host + cost.disk >= footprint(free).host
        assert cost.moved > 0
        spilled = sum(part.spilled for part in cost.segments)
        assert (spilled == 0) == (room == footprint(free).host)
        assert (spilled == cost.moved) == (room == 0)
        assert seconds(plan, cost, machine) >= seconds(free, footprint(free), machine)


# -- time --------------------------------------------------------------------------------------------------------------
def time_of(plan: Schedule, machine: Machine = CPU) -> float:
    return seconds(plan, footprint(plan), machine)


@kinds
def test_estimates_order_what_is_plain(kind: type[Block]) -> None:
    """Rows computed twice, operations started more often, bytes that travel: each takes time."""
    program = large(kind)
    times = [time_of(schedule(program, rows)) for rows in (64, *HEIGHTS)]
    assert times == sorted(times)
    here = schedule(program, 16)
    away = [schedule(program, 16, dict.fromkeys(movable(here)[:n], "disk")) for n in range(len(movable(here)) + 1)]
    slow = replace(CPU, disk=1e5)
    times = [time_of(plan, slow) for plan in away]
    assert times == sorted(times)
    assert times[-1] > 10 * times[0]
    on_host = schedule(program, 16, dict.fromkeys(movable(here), "host"))
    assert time_of(on_host, CUDA) < time_of(away[-1], CPU)
    assert time_of(schedule(program_of(kind, 4096, 512), 16)) > 1.5 * time_of(here)


def test_copies_are_hidden_behind_computation() -> None:
    """A link that is fast enough costs nothing."""
    program = large(TwoNorms)
    here = schedule(program, 16)
    away = schedule(program, 16, dict.fromkeys(movable(here), "disk"))
    endless = replace(CPU, disk=1e15)
    assert time_of(away, endless) == pytest.approx(time_of(here, endless), rel=1e-6)


class Attending(Block):
    """Attention between two norms: its keys, what it is added to and the sum are stored, all as large."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = h + self.mix(F.silu(self.norm(h)))
        n, c, height, width = h.shape
        q, k, v = self.qkv(self.norm2(h).flatten(2).transpose(1, 2)).chunk(3, dim=-1)
        out = F.scaled_dot_product_attention(q, k, v)
        h = h + out.transpose(1, 2).reshape(n, c, height, width)
        return self.last(F.silu(self.norm(h)))


def test_attentions_keys_stay_while_anything_as_large_could_go() -> None:
    """Seen in parts they cost several times the time of a move."""
    program = large(Attending)
    keys = program.chunkable
    assert keys
    plans = [plan for plan, _ in smaller.ever_smaller(program, 64, CUDA, {}, smaller.Way({}), frozenset(), Known())]
    before = next(a for a, b in itertools.pairwise(plans) if keys & b.places.keys())
    attending = next(n for n, part in enumerate(before.segments) if any(program.ops[i].chunked for i in part.body))
    spans = smaller._spans(before, before.places)
    stay = {i for i, (made, dropped) in spans.items() if made <= attending <= dropped and i not in keys}
    assert not [i for i in stay if program.ops[i].bytes >= max(program.ops[key].bytes for key in keys)]
