"""What a side's steps ask of their session, which they do not keep alive: a cycle would hold the weights' copies."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from tvae.pipeline.engine.plan.report import Plan
from tvae.pipeline.engine.run.storage import RowSink, RowSource
from tvae.pipeline.models.calls import Call
from tvae.pipeline.session.task import Task

if TYPE_CHECKING:
    from tvae.pipeline.session.session import Session

__all__ = ["StepRuns"]

Inputs = Sequence[Tensor | RowSource]
"""A chunk, and the caches that the step before left."""


class StepRuns:
    """Steps of one side, by the session's own methods. Whoever asks holds it."""

    def __init__(self, session: Session, task: Task) -> None:
        self._session, self._task = weakref.ref(session), task

    def compute(
        self, inputs: Inputs, sinks: Mapping[int, RowSink], *, beside: int = 0, last: bool = False
    ) -> list[Tensor]:
        """The results that no sink takes; sinks by number of the result. beside: bytes to come. last: no caches are
        among them."""
        return self._its().compute(self._task, inputs, Call(last=last), sinks, beside=beside)[0]

    def check(
        self, inputs: Inputs, sinks: Mapping[int, int], *, running: bool, beside: int, last: bool = False
    ) -> None:
        """Raises PlanError where a step with these inputs does not keep the limits. running: it comes next."""
        self._its().check(self._task, inputs, Call(last=last), sinks, running=running, beside=beside)

    def plan(self, inputs: Inputs, sinks: Mapping[int, int], *, beside: int, last: bool = False) -> Plan:
        """What ``compute`` would do; sinks by number, with the dimension of their rows. beside: bytes to come."""
        return self._its().plan(self._task, inputs, Call(last=last), sinks, beside=beside)

    def shapes(self, inputs: Inputs) -> list[tuple[int, ...]]:
        """Of the result and of the caches that a step leaves."""
        return self._its().shapes(self._task, inputs)

    def _its(self) -> Session:
        session = self._session()
        assert session is not None, "who runs steps holds their session"
        return session
