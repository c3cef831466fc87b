"""When rows are shared: by what was measured, and by arithmetic on plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tvae.pipeline.engine.plan.report import Plan, SegmentPlan
from tvae.pipeline.errors import PlanError
from tvae.pipeline.session.clip_plan import ClipPlan, StepPlan
from tvae.pipeline.session.sharing_pays import Expected, expected, expected_of_all

SEGMENT = SegmentPlan("m", "kept", 1, 8, 1, 1, 1, 1.0)
MEASURED: list[tuple[str, int, int, tuple[float, float], int, tuple[float, float]]] = [
    ("decode", 1024, 32, (0.0195, 0.0104), 23, (0.0163, 0.0723)),
    ("decode", 2048, 32, (0.0851, 0.0431), 78, (0.0971, 0.0821)),
    ("decode", 4096, 32, (0.516, 0.258), 285, (0.511, 0.281)),
    ("decode", 8192, 32, (4.88, 2.44), 1082, (5.30, 2.80)),
    ("encode", 1024, 24, (0.0112, 0.0061), 20, (0.0097, 0.0615)),
    ("encode", 2048, 24, (0.0526, 0.0268), 73, (0.0500, 0.0612)),
    ("encode", 4096, 24, (0.384, 0.192), 275, (0.407, 0.209)),
    ("encode", 8192, 24, (4.35, 2.18), 1062, (4.82, 2.43)),
]
"""SDXL's shape: side, size, segments, seconds of the plans for one and of two, MiB that come; seconds of one H100 and
of two."""


def plan(seconds: float, segments: int = 0, mib: int = 0, devices: int = 1) -> Plan:
    bands = tuple((n, n + 1) for n in range(devices)) if devices > 1 else ()
    found = Plan("decode", (1,), (1,), "float32", 1, 1, (SEGMENT,) * segments, (), 0, 0)
    return replace(found, seconds=seconds, bands=bands, received_bytes=mib << 20)


def refused() -> Plan:
    raise PlanError("no plan fits")


def one(alone: Plan | ClipPlan, shared: Plan | ClipPlan, times: int = 1) -> Expected:
    return expected([(lambda: alone, lambda: shared)], 2, times)


@pytest.mark.parametrize(("side", "size", "segments", "planned", "mib", "took"), MEASURED)
def test_two_cards(side: str, size: int, segments: int, planned: Any, mib: int, took: Any) -> None:
    """Without the start it says what was faster, and how long two take within a fifth; with it, none of them pays as a
    command."""
    found = one(plan(planned[0]), plan(planned[1], segments, mib, 2))
    assert found.together == pytest.approx(took[1], rel=0.2)
    assert replace(found, start=0.0).pays == (took[1] < took[0])
    assert not found.pays


def test_long_enough() -> None:
    """A clip of 18 s, and frames that come one by one through an image VAE."""
    assert one(plan(18.0), plan(9.0, 32, 100, 2)).pays
    assert not one(plan(9.0), plan(4.6, 32, 100, 2)).pays
    assert one(plan(0.51), plan(0.26, 32, 285, 2), times=30).pays


def test_what_fits_into_no_device_alone() -> None:
    found = expected([(refused, lambda: plan(100.0, 9, 9, 2))], 2)
    assert found.pays
    assert (
        str(found) == "a device has too little memory for all rows, 1.67 min and 4.5 s to start with rows on 2 devices"
    )


def test_what_cannot_be_shared() -> None:
    assert not one(plan(100.0), plan(100.0, 9)).pays


def test_steps_count_each() -> None:
    steps = tuple(StepPlan(1, count, plan(0.001, 10, 0, 2)) for count in (1, 7))
    assert one(plan(1.0), ClipPlan("decode", (1,), steps, 0, 0)).together == pytest.approx(8 * 10 * 2.5e-3)


def test_several_items() -> None:
    """Whole ones are computed at the same time, and have processes, too."""

    def several(alone: float, together: float, devices: int) -> Expected:
        calls = [(lambda: plan(alone), lambda: plan(together, 32, 0, devices))]
        return expected(calls, devices, several=True)

    items = [several(4.0, 1.0, 4), several(1.0, 0.3, 4)]
    found = expected_of_all(items, 4)
    assert (found.alone, found.together, found.start, found.pays) == (4.0, pytest.approx(1.3), 0.0, True)
    assert not expected_of_all([several(1.0, 0.6, 2)] * 2, 3).pays
    assert expected_of_all([*items, expected([(refused, lambda: plan(9.0))], 4, several=True)], 4).alone is None
    assert expected_of_all([one(plan(1.0), plan(0.3, 32, 0, 4))], 4).start == 4.5
    assert not expected_of_all([], 4).pays


def test_what_cannot_pay_is_not_planned() -> None:
    def never() -> Plan:
        raise AssertionError("it takes as long as a small picture")

    found = expected([(lambda: plan(4.0), never)], 2, quick=True)
    assert (found.pays, str(found)) == (
        False,
        "about 4 s with all rows on a device, 4.5 s to start with rows on 2 devices",
    )
    assert expected([(lambda: plan(4.0), lambda: plan(2.0, devices=2))], 2, 3, quick=True).pays
