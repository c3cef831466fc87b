"""Which runs take PyTorch's own operations while kernels are being built. On a card: tests/gpu/test_first_runs.py."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tvae.kernels.definitions import definitions_alone
from tvae.kernels.prebuild import beside, wait_for_all
from tvae.pipeline.memory.limits import Limits
from tvae.pipeline.session import first_runs, runner
from tvae.pipeline.session.first_runs import takes_definitions
from tvae.pipeline.session.model import open_model

CPU = torch.device("cpu")
GIB = 1 << 30
EARLY = Limits(16, wait_for_kernels=False)


@contextmanager
def building() -> Iterator[None]:
    """Something that is not done before the end."""
    go = threading.Event()
    beside(lambda: go.wait(60))
    try:
        yield
    finally:
        go.set()
        wait_for_all()


def planned(seconds: float = 0.1, size: int = GIB, *dims: int) -> Any:
    """dims: of the inputs."""
    ops = [SimpleNamespace(shape=(1,) * n) for n in dims or (4,)]
    program = SimpleNamespace(ops=ops, inputs=range(len(ops)))
    return SimpleNamespace(seconds=seconds, bytes=size, schedule=SimpleNamespace(program=program))


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> dict[str, int | None]:
    """Free on the device."""
    free: dict[str, int | None] = {"bytes": 100 * GIB}
    monkeypatch.setattr(first_runs, "unused_bytes", lambda _: free["bytes"])
    return free


def test_a_brief_run_does_without() -> None:
    assert not takes_definitions(planned(), EARLY, CPU)  # there is nothing to wait for
    with building():
        assert takes_definitions(planned(), EARLY, CPU)
    assert not takes_definitions(planned(), EARLY, CPU)


@pytest.mark.parametrize(
    "limits", [Limits(16), *(Limits(16, wait_for_kernels=False, **k) for k in ({"vram": 9 * GIB},))]
)
def test_who_wants_one_level_or_named_the_memory_waits(limits: Limits) -> None:
    with building():
        assert not takes_definitions(planned(), limits, CPU)


@pytest.mark.parametrize("dims", [(5,), (5, 5, 5), (4, 5)])
def test_a_clip_waits(dims: tuple[int, ...]) -> None:
    with building():
        assert not takes_definitions(planned(0.1, GIB, *dims), EARLY, CPU)


def test_a_long_run_waits() -> None:
    with building():
        assert takes_definitions(planned(seconds=0.9), EARLY, CPU)
        assert not takes_definitions(planned(seconds=1.1), EARLY, CPU)


def test_a_run_that_has_no_room_for_more_waits(room: dict[str, int | None]) -> None:
    with building():
        room["bytes"] = 41 * GIB
        assert takes_definitions(planned(size=10 * GIB), EARLY, CPU)
        assert not takes_definitions(planned(size=11 * GIB), EARLY, CPU)
        assert not takes_definitions(planned(size=10 * GIB), Limits(16, share=0.9, wait_for_kernels=False), CPU)
        room["bytes"] = None
        assert not takes_definitions(planned(), EARLY, CPU)


def test_kernels_that_are_soon_there_are_waited_for() -> None:
    beside(lambda: time.sleep(0.05))
    assert not takes_definitions(planned(), EARLY, CPU)
    assert wait_for_all(0)


def test_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    first_runs._tell.cache_clear()
    caplog.set_level(logging.INFO, "tvae")
    with building():
        for _ in range(3):
            takes_definitions(planned(), EARLY, CPU)
    assert [line for line in caplog.messages if "being built" in line] == [
        "kernels are being built: PyTorch's own operations compute until they are there"
    ]


@pytest.mark.parametrize("waits", [False, True])
def test_a_model_asks_for_every_run(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And gives the same numbers: on a CPU all levels are PyTorch's own."""
    model = open_model("builtin", device="cpu", wait_for_kernels=waits)
    alone: list[bool] = []
    _note_runs(monkeypatch, alone)
    x = torch.rand(1, 3, 64, 48).mul(2).sub(1)
    expected = open_model("builtin", device="cpu").encode(x).mean
    alone.clear()
    with building():
        assert torch.equal(model.encode(x).mean, expected)
        assert torch.equal(model.encode(x).mean, expected)
    assert torch.equal(model.encode(x).mean, expected)
    assert alone == ([False] * 3 if waits else [True, True, False])


def _note_runs(monkeypatch: pytest.MonkeyPatch, alone: list[bool]) -> None:
    """Notes of each run whether it takes definitions alone."""
    execute = runner.execute
    monkeypatch.setattr(runner, "execute", lambda *a, **k: (alone.append(definitions_alone()), execute(*a, **k))[1])
