"""Runs that begin before the model is looked at, on one device. On a GPU: ``tests/gpu/test_changes.py``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tvae.pipeline.errors import PlanError
from tvae.pipeline.models.calls import Call
from tvae.pipeline.session.early_runs import EarlyRuns
from tvae.pipeline.session.kept_runs import KeptRuns, run_key
from tvae.pipeline.session.prepared import NO_SINKS
from tvae.pipeline.session.task import Task

X = torch.zeros(1)


@dataclass
class Stage:
    """One run, and what is said of its model. prepared: it came before. quick: can it be planned before the model is
    looked at; an error: with this error. kept: is it there in the end? log: what was done, in order."""

    recorded: bool = False
    repeats: bool = True
    in_place: bool = True
    serves: bool | None = True
    start: Any = "start"
    still: bool = True
    written: bool = False
    prepared: bool = True
    quick: Any = True
    kept: bool = False
    log: list[str] = field(default_factory=list)

    def _told(self, what: str, answer: Any) -> Any:
        self.log.append(what)
        return answer

    def call(self, task: Task | None = None) -> Any:
        """What ``begun`` gives for the input that there is a run for, or for another side's."""
        runner: Any = SimpleNamespace(
            recorded=self.recorded,
            repeats=self.repeats,
            weights_in_place=lambda: self.in_place,
            run=lambda inputs, recorder: self._told("run", [inputs[0]]),
        )
        weights: Any = SimpleNamespace(
            start=lambda: self.start,
            look=lambda start: self._told("look", lambda: self.written),
            in_their_places=lambda: self.in_place,
            as_they_were=nullcontext,
        )
        runs = KeptRuns(torch.device("cpu"))
        ready: Any = SimpleNamespace(runner=runner, spec="spec")
        key = run_key(Task("encode"), [X], Call(), NO_SINKS)
        if self.prepared:
            runs.put(key, ready)

        @contextmanager
        def settings(*, steps: bool) -> Any:
            assert not steps
            self.log.append("settings")
            try:
                yield
            finally:
                self.log.append("as before")

        def prepare(*_given: Any) -> Any:
            self.log.append("prepare")
            if isinstance(self.quick, Exception):
                raise self.quick
            return ready if self.quick else None

        serves: Callable[[Any], bool] | None = None if self.serves is None else lambda _ready: bool(self.serves)
        of_run: Callable[..., AbstractContextManager[Any]] = settings
        early = EarlyRuns(runs, weights, lambda: self._told("still", self.still), None, serves, of_run, prepare)
        session: Any = None
        found = early.begun(session, task or Task("encode"), [X], Call())
        self.kept = runs.prepared(key) is not None
        return found


def test_a_run_that_is_not_recorded_begins_before_the_model_is_looked_at() -> None:
    stage = Stage()
    assert stage.call() == ([X], "spec")
    assert stage.log == ["settings", "run", "look", "still", "as before"]


def test_a_recorded_one_needs_no_settings_and_no_room() -> None:
    stage = Stage(recorded=True, serves=None, start=None)
    assert stage.call() == ([X], "spec")
    assert stage.log == ["run", "look", "still"]


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("changed", [{"still": False}, {"written": True}])
def test_a_model_that_has_changed_gives_nothing(changed: dict[str, bool], recorded: bool) -> None:
    stage = Stage(recorded=recorded, **changed)
    assert stage.call() is None
    assert "run" in stage.log


CANNOT: dict[str, dict[str, Any]] = {
    "draws noise": {"repeats": False},
    "no room, or its weights are gone": {"serves": False},
    "memory was named, or nothing watches the weights": {"serves": None},
    "no checksum yet": {"start": None},
    "recorded, and its weights are gone": {"recorded": True, "in_place": False, "serves": False},
}


@pytest.mark.parametrize("case", CANNOT)
def test_what_cannot_begin_early(case: str) -> None:
    stage = Stage(**CANNOT[case])
    assert stage.call() is None
    assert not stage.log


def test_a_new_size_begins_before_the_model_is_looked_at() -> None:
    stage = Stage(prepared=False)
    assert stage.call() == ([X], "spec")
    assert stage.log == ["settings", "prepare", "run", "look", "still", "as before"]
    assert stage.kept


@pytest.mark.parametrize("changed", [{"still": False}, {"written": True}])
def test_a_model_that_has_changed_gives_nothing_at_a_new_size(changed: dict[str, bool]) -> None:
    stage = Stage(prepared=False, **changed)
    assert stage.call() is None
    assert "run" in stage.log


NOT_QUICK: dict[str, dict[str, Any]] = {
    "a graph is to be captured, or memory is short": {"quick": None},
    "the plan of a model that was another is refused": {"quick": PlanError("no room")},
    "its weights lie elsewhere": {"quick": RuntimeError("two devices")},
    "it draws noise": {"repeats": False},
}


@pytest.mark.parametrize("case", NOT_QUICK)
def test_a_new_size_that_waits_for_the_model(case: str) -> None:
    stage = Stage(prepared=False, **NOT_QUICK[case])
    assert stage.call() is None
    assert stage.log == ["settings", "prepare", "as before"]
    assert not stage.kept


@pytest.mark.parametrize("case", [{"in_place": False}, {"serves": None}, {"start": None}])
def test_a_new_size_that_is_not_planned_early(case: dict[str, Any]) -> None:
    stage = Stage(prepared=False, **case)
    assert stage.call() is None
    assert not stage.log
