"""What schedules of one program have in common is made and counted once, with the same result."""

from __future__ import annotations

from typing import Any

import pytest
from large_programs import HEIGHTS, kinds, large
from small_models import Block

from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.plan import ways
from tvae.pipeline.engine.plan.footprint import bytes_elsewhere, footprint
from tvae.pipeline.engine.plan.known import Known, known_of
from tvae.pipeline.engine.plan.machine import CPU, CUDA, Machine
from tvae.pipeline.engine.plan.planner import fitting
from tvae.pipeline.engine.plan.schedule import Schedule, schedule
from tvae.pipeline.engine.plan.smaller import chains
from tvae.pipeline.errors import PlanError


@kinds
@pytest.mark.parametrize("machine", [CPU, CUDA], ids=["disk", "host"])
def test_what_is_counted_once_is_what_would_be_counted_again(kind: type[Block], machine: Machine) -> None:
    program = large(kind)
    seen = 0
    for chain in chains(program, HEIGHTS, machine, {}, known_of(program)):
        for plan, cost in chain:
            assert cost == footprint(plan, Known())
            away = bytes_elsewhere(plan, plan.places)
            assert (cost.host, cost.disk) == (away["host"], away["disk"])
            seen += bool(plan.places)
    assert seen > 3


@kinds
def test_a_refusal_cuts_a_program_once_in_each_way(kind: type[Block], monkeypatch: pytest.MonkeyPatch) -> None:
    """The search begins again, one buffer at a time, where many at a time found nothing."""
    cuts: list[Any] = []

    def cut(program: Program, rows: int, places: Any, cuts_: Any, **how: Any) -> Schedule:
        cuts.append((rows, sorted(cuts_.items()), sorted((k, str(v)) for k, v in how.items())))
        return schedule(program, rows, places, cuts_, **how)

    monkeypatch.setattr(ways, "schedule", cut)
    with pytest.raises(PlanError):
        fitting(large(kind), HEIGHTS, 0, CPU)
    sliding = [each for each in cuts if "slides" in dict(each[2])]
    plain = [each for each in cuts if each not in sliding]
    assert len(sliding) == len({str(each) for each in sliding})
    assert len(plain) <= 2 * len({str(each) for each in plain})  # of a way that slides, once more
    assert len(cuts) > 3


class Forgetful(dict[Any, Any]):
    """As if another thread emptied it at once."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


@kinds
def test_what_another_thread_forgets_is_counted_again(kind: type[Block]) -> None:
    """Threads that plan one program share what is known, and empty it when they begin."""
    program = large(kind)
    known = Known(**{name: Forgetful() for name in ("loops", "strips", "built", "wholes", "seen")})

    def costs(known: Known) -> list[list[Any]]:
        return [[cost for _, cost in chain] for chain in chains(program, HEIGHTS[:2], CPU, {}, known)]

    assert costs(known) == costs(Known())
