"""The sides of a session's model, and their steps, each made ready for planning when it is first asked for."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from torch import Tensor

from tvae.kernels import Kernels
from tvae.pipeline.memory.limits import Limits
from tvae.pipeline.models.calls import Call
from tvae.pipeline.models.families import frames_axis_of, stepping_of
from tvae.pipeline.session.peers import Peers
from tvae.pipeline.session.prepared import Compiled
from tvae.pipeline.session.ready import Ready
from tvae.pipeline.session.subject import Subject
from tvae.pipeline.session.task import Task
from tvae.pipeline.session.weights import PreparedWeights

__all__ = ["Sides"]

_FOR_ALL = threading.Lock()
"""While graphs are looked up that several sessions have in common."""


class Sides:
    """See the module's docstring; ``Session`` and ``Compiled`` tell of the arguments."""

    def __init__(
        self,
        subject: Subject,
        kernels: Kernels,
        *,
        allow_whole: bool,
        channels_last: bool,
        peers: Peers | None,
    ) -> None:
        self._subject, self._kernels, self._allow_whole = subject, kernels, allow_whole
        self._channels_last, self._peers = channels_last, peers
        self._made: dict[Task, Compiled] = {}

    def __getitem__(self, task: Task) -> Compiled:
        if task not in self._made:
            subject, family = self._subject, self._subject.family
            subject.check(task.side)
            stepping = stepping_of(family, task.side) if family is not None and task.step else None
            self._made[task] = Compiled(
                task.side,
                subject.module,
                subject.key,
                self._kernels,
                allow_whole=self._allow_whole,
                step=None if stepping is None else stepping.step,
                frames=None if family is None or stepping is not None else frames_axis_of(family, task.side),
                fits=subject.fits,
                still=subject.still,
                channels_last=self._channels_last,
                written=subject.written,
                peers=self._peers,
            )
            self._made[task].captures.numbers = subject.numbers
            if subject.shared is not None:
                with _FOR_ALL:
                    self._made[task].captures = subject.shared.setdefault(task, self._made[task].captures)
        return self._made[task]

    def get(self, task: Task) -> Compiled | None:
        """None where it was not asked for yet."""
        return self._made.get(task)

    def quickly_ready(
        self,
        task: Task,
        inputs: Sequence[Tensor],
        call: Call,
        *,
        weights: PreparedWeights,
        limits: Limits,
        record: bool,
    ) -> Ready | None:
        """A picture's run, where its graph is in memory and it gets the strips that it prefers; else None. See
        ``Compiled.ready``."""
        side = self.get(task)
        if side is None or inputs[0].ndim != 4 or not side.captures.there(inputs, call):
            return None
        ready = side.ready(inputs, weights, limits, call, record=record)
        return ready if ready.planned.at_ease else None

    def drop(self, task: Task) -> None:
        """Make it anew when it is asked for again."""
        del self._made[task]
        if self._subject.shared is not None:
            self._subject.shared.pop(task, None)
