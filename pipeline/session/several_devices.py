"""One model at work on several devices of this process, which share the rows of each call.

To who calls it is a ``Session``. Each device has a session of its own, in a thread of its own, that plans and computes
its band of rows. The first has the caller's inputs and gives the result; the weights of the others are copies, made
when they are first asked for. Graphs are captured once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from tvae.pipeline.engine.plan.report import Plan
from tvae.pipeline.memory.limits import Limits
from tvae.pipeline.models.calls import Call, Side
from tvae.pipeline.session.captures import Captures
from tvae.pipeline.session.clip_plan import ClipPlan
from tvae.pipeline.session.clip_steps import ClipSteps
from tvae.pipeline.session.outputs import Spec
from tvae.pipeline.session.rank_threads import RankThreads
from tvae.pipeline.session.session import Session
from tvae.pipeline.session.subject import Subject
from tvae.pipeline.session.task import Task
from tvae.pipeline.session.thread_peers import ThreadPeers
from tvae.pipeline.session.turns import Turns
from tvae.pipeline.session.weights import WeightWatch
from tvae.presets import Preset

__all__ = ["SeveralDevices"]

T = TypeVar("T")


class SeveralDevices:
    """See the module's docstring. After a call that failed all begin anew: they may have come to know different things.

    limits: of each device. allow_whole: see ``TiledVAE``.
    """

    def __init__(
        self,
        subject: Subject,
        preset: Preset,
        dtype: torch.dtype,
        devices: Sequence[torch.device],
        limits: Limits,
        *,
        allow_whole: bool = False,
    ) -> None:
        self.dtype, self._devices = dtype, devices
        self._subject, self._graphs = subject, dict[Task, Captures]()
        self._how: Any = {"preset": preset, "dtype": dtype, "limits": limits, "allow_whole": allow_whole}
        self._begin()

    def _begin(self) -> None:
        self._threads = RankThreads(self._devices)
        first = replace(self._subject, shared=self._graphs)
        self._sessions = [
            Session(
                replace(first, lock=Turns()) if rank else first,
                device=device,
                peers=ThreadPeers(self._threads.meeting, rank),
                **self._how,
            )
            for rank, device in enumerate(self._devices)
        ]
        self._watch: WeightWatch | None = None

    def _together(self, do: Callable[[int], T]) -> T:
        """By the numbers of the devices: what ``do(0)`` gives."""
        try:
            return self._threads.run(do)
        except BaseException:  # an interruption included
            self._begin()
            raise

    def compute(
        self, task: Task, inputs: Sequence[Tensor], call: Call, *, generator: torch.Generator | None = None
    ) -> tuple[list[Tensor], Spec]:
        """See ``Session``."""
        self._look_at_weights()

        def its(rank: int) -> tuple[list[Tensor], Spec]:
            noise = torch.Generator(self._devices[rank]) if rank else generator  # what is drawn is the first's
            return self._sessions[rank].compute(task, self._given(inputs, rank), call, generator=noise)

        return self._together(its)

    def begun(self, _task: Task, _inputs: Sequence[Tensor], _call: Call) -> tuple[list[Tensor], Spec] | None:
        """See ``Session``: no call that devices share begins early."""
        return None

    def same_call(self, _task: Task, _inputs: Sequence[Tensor], _call: Call) -> AbstractContextManager[None]:
        """See ``Session``: devices of one process do."""
        return nullcontext()

    def clip(self, side: Side, x: Tensor) -> Tensor:
        """See ``Session``."""
        self._look_at_weights()
        return self._together(lambda rank: self._sessions[rank].clip(side, *self._given([x], rank)))

    def steps(self, side: Side) -> ClipSteps | None:
        """See ``Session``."""
        return self._sessions[0].steps(side)

    def plan(self, task: Task, inputs: Sequence[Tensor], call: Call, sinks: Mapping[int, int]) -> Plan:
        """See ``Session``; as the first device would run it."""
        self._look_at_weights()

        def its(rank: int) -> Plan:
            device = self._devices[rank]  # of the same shapes, in no memory
            like: Any = [torch.empty((), dtype=x.dtype, device=device).expand(x.shape) for x in inputs]
            return self._sessions[rank].plan(task, inputs if rank == 0 else like, call, sinks)

        return self._together(its)

    def plan_clip(self, side: Side, shape: tuple[int, ...], *, whole: bool = False) -> ClipPlan:
        """See ``Session``; as the first device would run it."""
        self._look_at_weights()
        return self._together(lambda rank: self._sessions[rank].plan_clip(side, shape, whole=whole))

    def forget(self) -> None:
        """See ``Session``."""
        self._watch = None
        for session in self._sessions:
            session.forget()

    def _look_at_weights(self) -> None:
        """Before a call. Copies are those of the last look; where a weight was written to since, they are dropped.
        What else may change about a model its owner sees, who says ``forget``."""
        if self._watch is not None and self._watch.look(self._watch.start())():
            self.forget()
        if self._watch is None:
            self._watch = WeightWatch(self._subject.weights([]), {})

    def _given(self, inputs: Sequence[Tensor], rank: int) -> list[Tensor]:
        """The inputs on a device."""
        return [x.to(self._devices[rank], non_blocking=True) for x in inputs]
