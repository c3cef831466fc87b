"""Calls that come again, and those of new sizes that are quickly planned: the run begins before the model is looked at,
which is done while the device computes.

Ranks that share calls must all begin, or none: what one sends the others wait for. So they tell each other after a call
whether they have recorded it, and begin early from the next one on where all had, whatever became of a recording since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol

import torch
from torch import Tensor

from tvae.kernels.new_objects import look_through_new
from tvae.pipeline.errors import TvaeError
from tvae.pipeline.models.calls import Call
from tvae.pipeline.session.input_sums import start_of
from tvae.pipeline.session.kept_runs import KeptRuns, run_key
from tvae.pipeline.session.outputs import Spec
from tvae.pipeline.session.peers import Peers, same_call
from tvae.pipeline.session.prepared import NO_SINKS
from tvae.pipeline.session.ready import Ready
from tvae.pipeline.session.task import Task
from tvae.pipeline.session.weights import PreparedWeights

__all__ = ["EarlyRuns"]

Found = tuple[list[Tensor], Spec]
"""See ``Session.compute``."""


class Computes(Protocol):
    """A session."""

    def compute(self, task: Task, inputs: Sequence[Tensor], call: Call) -> Found:
        """See ``Session``."""


class EarlyRuns:
    """Of one session. still: is the model what it was? peers: see ``Session``. serves: is there room for a run that is
    not recorded; None where none such begins early. settings: such a run's, of PyTorch's backends. prepare: makes the
    run of a size that comes for the first time; None where that takes more than a plan."""

    def __init__(
        self,
        runs: KeptRuns,
        weights: PreparedWeights,
        still: Callable[[], bool],
        peers: Peers | None,
        serves: Callable[[Ready], bool] | None,
        settings: Callable[..., AbstractContextManager[Any]],
        prepare: Callable[[Task, Sequence[Tensor], Call], Ready | None],
    ) -> None:
        self._runs, self._weights, self._still, self._peers = runs, weights, still, peers
        self._serves, self._settings, self._prepare = serves, settings, prepare
        self._recorded_by_all: set[Any] = set()
        self._alike: set[tuple[int, ...]] = set()

    def begun(self, session: Computes, task: Task, inputs: Sequence[Tensor], call: Call) -> Found | None:
        """What ``session.compute`` gives; None where no run for such inputs is there that can begin early, or the model
        has changed: on all ranks alike."""
        key = run_key(task, inputs, call, NO_SINKS)
        if self._peers is None:
            return self._begun_alone(key, task, inputs, call)
        if key not in self._recorded_by_all:
            return None
        now = start_of(inputs[0].device)
        with same_call(self._peers, session, (task.side, call), inputs, now) as told:
            ready, start, replay = None, now, None
            with self._peers.failed.kept():
                ready, start = self._replayable(key), self._weights.start(now)
                replay = None if ready is None else ready.runner.at_hand(inputs, self._runs)
            told.agree()
            if ready is not None and self._peers.failed.error is None:
                found = self._begun(ready, start, inputs, replay)
            else:  # the others wait for what this rank sends
                found = session.compute(task, inputs, call)
                found = found if self._still() else None
            told.changed = found is None
            with self._peers.failed.kept():
                told.weights = self._weights.digest()
        if told.changed_somewhere:
            self._recorded_by_all.clear()
            return None
        self._compare_weights(told.weights_of_all)
        return found

    @contextmanager
    def same_call(self, session: Computes, task: Task, inputs: Sequence[Tensor], call: Call) -> Iterator[None]:
        """Around a call that did not begin early. See ``same_call``."""
        key = run_key(task, inputs, call, NO_SINKS)
        now = None if self._peers is None else start_of(inputs[0].device)
        with same_call(self._peers, session, (task.side, call), inputs, now) as told:
            told.agree()
            yield
            if self._peers is not None:
                with self._peers.failed.kept():
                    told.recorded, told.weights = self._runs.recorded(key) is not None, self._weights.digest()
        self._compare_weights(told.weights_of_all)
        if told.recorded_everywhere:
            self._recorded_by_all.add(key)

    def _compare_weights(self, every: tuple[int, ...]) -> None:
        """Raises UsageError on all ranks where their weights were not alike. every: digests of what each was asked for,
        which differ also where one of them has let go of what it had."""
        if self._peers is not None and len({*every}) > 1 and every not in self._alike:
            self._peers.check_alike([("set of weights", sorted(self._weights.sums_of_all().items()))])
            self._alike.add(every)

    def _begun_alone(self, key: Any, task: Task, inputs: Sequence[Tensor], call: Call) -> Found | None:
        ready, start = self._replayable(key), self._weights.start()
        if ready is not None:
            return self._begun(ready, start, inputs)
        if start is None or self._serves is None:
            return None
        ready = self._runs.prepared(key)
        if ready is None:
            return self._begun_first(key, task, start, inputs, call)
        if not ready.runner.repeats or not self._serves(ready):
            return None
        with self._settings(steps=False):
            return self._begun(ready, start, inputs)

    def _begun_first(
        self, key: Any, task: Task, start: torch.cuda.Event, inputs: Sequence[Tensor], call: Call
    ) -> Found | None:
        """Of a model that has changed since, a plan may be wrong in any way: what fails here is tried again when the
        model has been looked at. A plan leaves thousands of objects, which stay: left to itself, Python's collector
        would look through those of ten sizes at once, for 6 ms."""
        if not self._weights.in_their_places():
            return None
        with suppress(TvaeError, RuntimeError), self._settings(steps=False):
            with self._weights.as_they_were():
                ready = self._prepare(task, inputs, call)
            if ready is not None and ready.runner.repeats:
                found = self._begun(self._runs.put(key, ready), start, inputs)
                look_through_new()
                return found
        return None

    def _replayable(self, key: Any) -> Ready | None:
        ready = self._runs.recorded(key)
        return ready if ready is not None and ready.runner.weights_in_place() else None

    def _begun(
        self,
        ready: Ready,
        start: torch.cuda.Event | None,
        inputs: Sequence[Tensor],
        replay: Callable[[], list[Tensor]] | None = None,
    ) -> Found | None:
        tensors = ready.runner.run(inputs, recorder=self._runs) if replay is None else replay()
        written = self._weights.look(start)
        return (tensors, ready.spec) if self._still() and not written() else None
