"""What decides how a program is cut: told once for each op, and not for one that was given more to say."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.program import Op, Program, Reduction
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.plan.structure import structure
from tvae.pipeline.engine.plan.ways import Prior, Way


def op(id_: int, *inputs: int, rows: int = 8, **more: Any) -> Op:
    axis, shape = Axis(2, 1, rows, 1), (1, 4, rows, 6)
    return Op(id_, "relu", "", inputs, axis, shape, torch.float32, lambda a, b: [], lambda *_: torch.empty(0), **more)


def program(*ops: Op) -> Program:
    return Program([*ops], [0], [ops[-1].id], {}, 8)


def test_the_same_at_other_sizes() -> None:
    low, high = (program(op(0, rows=rows), op(1, 0, rows=rows), op(2, 1, rows=rows)) for rows in (8, 12))
    assert structure(low) == structure(high)
    assert structure(low).alike == [0, 0, 0]
    assert structure(program(op(0), op(1, 0, rows=4), op(2, 1))).alike == [0, 1, 0]


def test_of_equal_structures_one_is_kept() -> None:
    """A run of a new size keeps its program, and would keep hundreds of tuples that another size has as well."""
    low, high = (replace(program(op(0, rows=n), op(1, 0, rows=n)), rows=n) for n in (8, 12))
    prior = Prior()
    prior.set(schedule(low, 8), Way({}))
    found = prior.rebuilt(high, 12, {})
    assert found is not None
    assert structure(high) is structure(low)
    assert found.segments == schedule(high, 12).segments
    assert "structure" not in {*high.ops[0].__dict__, *high.ops[1].__dict__}


def test_an_op_of_several_programs_is_looked_at_once() -> None:
    weight = replace(op(0), axis=None, constant=True)
    structure(program(weight, op(1, 0)))
    known = weight.__dict__["structure"]
    structure(program(weight, op(1, 0)))
    assert weight.__dict__["structure"] is known


def reduces(*, takes: bool) -> Reduction:
    return Reduction(0, lambda *_: None, lambda acc: acc, (lambda acc, _: acc) if takes else None)


TAKES = reduces(takes=True)
MORE: dict[str, Any] = {
    **{"kind": "noise", "replaces": (0,), "work": 3.0, "over": 0, "reduction": TAKES},
    "produce": lambda *_: (torch.empty(0), None),
}


@pytest.mark.parametrize("name", MORE)
def test_an_op_with_more_to_say_is_another(name: str) -> None:
    first, second = op(0), op(1, 0)
    before = structure(program(first, second))
    changed = second.with_fields(**{name: MORE[name]})  # type: ignore[arg-type]
    assert structure(program(first, changed)) != before
    assert structure(program(first, changed)) == structure(program(op(0), op(1, 0, **{name: MORE[name]})))
    assert structure(program(copy.copy(first), copy.copy(second))) == before


def test_a_reduction_that_takes_statistics_is_another() -> None:
    plain, takes = (program(op(0), op(1, 0, reduction=reduces(takes=takes))) for takes in (False, True))
    assert structure(plain) != structure(takes)
    assert structure(takes) == structure(program(op(0), op(1, 0, reduction=TAKES)))
