"""One model at work, behind the command line and ``TiledVAE`` alike.

A session holds what computing with one model needs: its captured graphs, its weights laid out for the computation, the
plans and prepared runs of the sizes that came by, and the limits all of them keep to. Who owns the model (files, or a
module of the caller's) is the subject's matter. Calls take turns: ``lock`` is held by every one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tvae.kernels.new_objects import look_through_new
from tvae.pipeline.device import backend_settings, kernels_of, uses_channels_last
from tvae.pipeline.engine.plan.report import Plan
from tvae.pipeline.engine.run.storage import RowSink, RowSource
from tvae.pipeline.memory.allocator import capped
from tvae.pipeline.memory.limits import Limits, tells_segments
from tvae.pipeline.models.calls import Call, Side
from tvae.pipeline.models.streaming import Cache, ClipStream
from tvae.pipeline.session.choose_plan import ChosenPlan, rows_dim
from tvae.pipeline.session.clip_plan import ClipPlan
from tvae.pipeline.session.clip_recorder import ClipRecorder
from tvae.pipeline.session.clip_steps import ClipSteps
from tvae.pipeline.session.early_runs import EarlyRuns
from tvae.pipeline.session.guarded import guarded
from tvae.pipeline.session.kept_runs import KeptRuns, drop_recordings, run_key
from tvae.pipeline.session.load_libraries import load_libraries
from tvae.pipeline.session.outputs import Spec
from tvae.pipeline.session.peers import Peers
from tvae.pipeline.session.prepared import NO_SINKS, Compiled
from tvae.pipeline.session.ready import Ready, serves_still
from tvae.pipeline.session.recorded_clip import RunStep
from tvae.pipeline.session.shared_run import SharedRun
from tvae.pipeline.session.sides import Sides
from tvae.pipeline.session.step_runs import StepRuns
from tvae.pipeline.session.subject import Subject
from tvae.pipeline.session.task import Task
from tvae.pipeline.session.turns import Turns
from tvae.pipeline.session.unanswered import answered
from tvae.pipeline.session.weights import PreparedWeights
from tvae.pipeline.session.whole_clip import whole_clip
from tvae.pipeline.settings.threads import computing_with
from tvae.presets import Preset

__all__ = ["Session", "Task"]


class Session:
    """See the module's docstring.

    limits: what every call keeps to. allow_whole: see ``TiledVAE``. threads: of PyTorch's that may compute on a CPU:
    small work is divided among fewer. None leaves their number as it is. peers: processes that share the same calls.
    """

    def __init__(
        self,
        subject: Subject,
        preset: Preset,
        dtype: torch.dtype,
        device: torch.device,
        limits: Limits,
        *,
        allow_whole: bool = False,
        threads: int | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.preset, self.dtype, self.device, self.limits = preset, dtype, device, limits
        self._subject, self._peers, self._threads = subject, peers, threads if device.type == "cpu" else None
        self._last = uses_channels_last(preset, dtype, device)
        # copies of weights that others write into stay only where checksums watch them
        borrowed = subject.borrowed and subject.shared is None
        self._watched = borrowed and device.type in ("cpu", "cuda")
        self._fresh = borrowed and not self._watched
        kind, to = None if subject.own_types else dtype, None if subject.shared is None else device
        self._weights = PreparedWeights(subject.weights, kind, self._last, subject.there, to)
        how: Any = {"bounded": limits.vram is not None}
        self._settings = partial(backend_settings, preset, dtype, device=device, **how)
        of_sides: Any = {"channels_last": self._last, "peers": peers}
        self._sides = Sides(subject, kernels_of(preset, **how), allow_whole=allow_whole, **of_sides)
        self._steps: dict[Side, ClipSteps | None] = {}
        self._runs, self._within_clip = KeptRuns(device), False
        self._records = preset.cuda_graphs and limits.vram is None and device.type == "cuda" and tells_segments()
        early, of_steps = self._records and self._watched, partial(self._settings, steps=True)
        self._serves = partial(serves_still, limits=limits, device=device, shared=peers is not None)
        serves = self._serves if early else None  # not the session itself: a cycle would keep all it holds
        quick = partial(self._sides.quickly_ready, weights=self._weights, limits=limits, record=self._records)
        self._early = EarlyRuns(self._runs, self._weights, subject.still, peers, serves, self._settings, quick)
        self._clips = ClipRecorder(self._runs, self._weights, of_steps) if early and peers is None else None

    @property
    def lock(self) -> Turns:
        """Held during every call."""
        return self._subject.lock

    def compute(
        self,
        task: Task,
        inputs: Sequence[Tensor | RowSource],
        call: Call,
        sinks: Mapping[int, RowSink] = NO_SINKS,
        generator: torch.Generator | None = None,
        beside: int = 0,
    ) -> tuple[list[Tensor], Spec]:
        """The tensors that a side or a step of it gives, and what they make. beside: bytes that are still to come."""
        limits = replace(self.limits, beside=beside)
        run = partial(self._run, task, inputs, call, sinks, generator, limits)
        if self._peers is None:
            return run()

        def plan(like: Sequence[Tensor], ask: bool) -> tuple[ChosenPlan, SharedRun]:
            with self.lock, self._settings(steps=task.step):
                return self._sides[task].agreed(like, limits, call, self._weights if ask else None)

        return answered(self._peers, run, plan, inputs)

    def _run(
        self,
        task: Task,
        inputs: Sequence[Tensor | RowSource],
        call: Call,
        sinks: Mapping[int, RowSink],
        generator: torch.Generator | None,
        limits: Limits,
    ) -> tuple[list[Tensor], Spec]:
        by_rows = bool(sinks) and not isinstance(inputs[0], Tensor)  # a clip that comes and goes
        if limits.vram is not None:
            self._take_stock(inputs)
        with self.lock, self._settings(steps=task.step), capped(self.device, limits.vram, by_rows=by_rows) as limit:
            what = task, inputs, call, {n: rows_dim(sink) for n, sink in sinks.items()}
            key, made = run_key(*what, limits.beside), partial(self._made, *what, limits)
            before = self._runs.prepared(key)
            try:
                ready = self._runs.get(key, made, self._serves)
                limit()
                with nullcontext() if self._threads is None else computing_with(ready.threads(self._threads)):
                    watched = self._weights if self._watched and not self._within_clip else None
                    given, again = (inputs, generator, sinks, self._runs), partial(self._again, key, made)
                    tensors = guarded(ready, again, given, watched, on_cuda=self.device.type == "cuda")
                if ready is not before:
                    look_through_new()
            finally:
                if self._fresh:
                    self.forget()
                if self._sides[task].torn:
                    self._runs.clear()
                    self._sides.drop(task)
            return tensors, ready.spec

    def begun(self, task: Task, inputs: Sequence[Tensor], call: Call) -> tuple[list[Tensor], Spec] | None:
        """What ``compute`` gives, by a run that begins before the model is looked at; see ``EarlyRuns``."""
        with self.lock:
            return self._early.begun(self, task, inputs, call)

    def same_call(self, task: Task, inputs: Sequence[Tensor], call: Call) -> AbstractContextManager[None]:
        """Around a call that did not begin so: do all ranks make the same one? Raises UsageError on all where not."""
        return self._early.same_call(self, task, inputs, call)

    def expect(self, task: Task, shape: tuple[int, ...], call: Call | None = None) -> None:
        """Plan for a first input of this shape that comes soon, so that ``compute`` need not. From any thread, while
        others compute. Plans nothing where memory was named: what is free is then known at the call alone."""
        self._runs.ahead, side, call = True, self._sides.get(task), call or Call()
        like = [torch.empty((), dtype=self.dtype, device=self.device).expand(shape)]
        known = self._runs.prepared(run_key(task, like, call, NO_SINKS)) is not None
        if side is not None and not known and self.limits.vram is None and self._peers is None:
            side.expect(like, self.limits, call)

    def _made(self, task: Task, inputs: Any, call: Call, dims: Mapping[int, int], limits: Limits) -> Ready:
        def prepare() -> Ready:
            return self._sides[task].ready(inputs, self._weights, limits, call, sinks=dims, record=self._records)

        ready = prepare()
        if not ready.planned.at_ease and self._peers is None and drop_recordings(self.device):
            ready = prepare()
        return ready

    def _again(self, key: Any, made: Callable[[], Ready]) -> Ready:
        self.forget()
        return self._runs.put(key, made())

    def shapes(self, task: Task, inputs: Sequence[Tensor | RowSource]) -> list[tuple[int, ...]]:
        """Of everything that ``compute`` would give: the result first, then the caches of a step."""
        return self._sides[task].shapes(inputs, Call())

    def forget(self) -> None:
        """Let go of prepared runs, copies of weights and recordings: the weights are about to change, or have."""
        self._runs.clear()
        self._weights.forget()

    def plan(
        self, task: Task, inputs: Sequence[Tensor | RowSource], call: Call, sinks: Mapping[int, int], *, beside: int = 0
    ) -> Plan:
        """What ``compute`` would do for such inputs; sinks by number, with the dimension of their rows. beside: bytes
        that are still to come, and not of this call."""
        with self._planning(task, inputs, call, running=False) as (side, weights):
            return side.plan(inputs, replace(self.limits, beside=beside), call, sinks=sinks, weights=weights)

    def check(
        self,
        task: Task,
        inputs: Sequence[Tensor | RowSource],
        call: Call,
        sinks: Mapping[int, int],
        *,
        running: bool,
        beside: int = 0,
    ) -> None:
        """Raises PlanError where ``compute`` would not keep the limits. running: it comes next, with its weights."""
        with self._planning(task, inputs, call, running=running) as (side, weights):
            side.check(inputs, replace(self.limits, beside=beside), call, sinks=sinks, weights=weights)

    @contextmanager
    def _planning(
        self, task: Task, inputs: Sequence[Tensor | RowSource], call: Call, *, running: bool
    ) -> Iterator[tuple[Compiled, PreparedWeights | None]]:
        """A side, and the weights that take their place now; under the settings and the limit of a run."""
        settings, side = self._settings(steps=task.step), self._sides[task]
        weights = self._weights if running or self._subject.borrowed else None
        if self.limits.vram is not None:
            self._take_stock(inputs)
        with self.lock, settings:
            side.capture(inputs, call)  # what it traces may be as large as the input: a budget would not have it
            try:
                with capped(self.device, self.limits.vram):
                    yield side, weights
            finally:
                if self._fresh:
                    self._weights.forget()

    def _take_stock(self, inputs: Sequence[Tensor | RowSource]) -> None:
        """Before memory is counted: what recordings keep goes, and libraries have taken theirs."""
        if self.device.type == "cuda":
            load_libraries(self.dtype, self.device, len(inputs[0].shape) - 2)
        drop_recordings(self.device)

    def stream(self, side: Side) -> ClipStream | None:
        """A clip chunk by chunk, in memory that does not grow with it; None where the model has no such steps."""
        steps = self.steps(side)
        if steps is None:
            return None

        def run(chunk: Tensor, caches: list[Cache], last: bool) -> list[Cache]:
            assert self.steps(side) is steps  # and so the session lives as long as its streams
            return steps.run(chunk, caches, last)

        return ClipStream(run, steps.cuts)

    def steps(self, side: Side) -> ClipSteps | None:
        """The steps of a side, None where the model has none."""
        return self._steps[side] if side in self._steps else self._steps.setdefault(side, self._made_steps(side))

    def plan_clip(self, side: Side, shape: tuple[int, ...], *, whole: bool = False) -> ClipPlan:
        """What a clip of this shape would take in steps, which the side has. Computes nothing. whole: the clip and its
        result are on the device, too, as ``clip`` has them."""
        steps = self.steps(side)
        assert steps is not None, "the caller asked whether there are steps"
        recorded = whole and self._clips is not None and self._clips.takes(steps, shape)
        with self.lock:
            return replace(steps.plan(shape, whole=whole), recorded=recorded)

    def clip(self, side: Side, x: Tensor) -> Tensor:
        """A whole clip in steps, which the side has, into one tensor: moments [N, 2C, t, h, w] or pixels."""
        steps = self.steps(side)
        assert steps is not None, "the caller asked whether there are steps"
        with self.lock:
            beside = 0 if self.limits.vram is None else steps.check(tuple(x.shape))
            like = torch.empty(0, dtype=self.dtype, device=self.device)
            whole = partial(whole_clip, steps, like=like, peers=self._peers, channels_last=self._last)
            found = None if self._clips is None else self._clips.replayed(side, steps, x, whole)
            if found is not None and not found[1]():
                return found[0]
            if found is not None:
                self.forget()
            try:
                return whole(self._looked_at_once(steps, beside), x)
            finally:
                self._within_clip = False

    def _looked_at_once(self, steps: ClipSteps, beside: int) -> RunStep:
        """Makes steps. When the first is done the weights have been looked at, for the rest of the clip."""

        def run(chunk: Tensor, caches: list[Cache], last: bool) -> list[Cache]:
            made = steps.run(chunk, caches, last, beside)
            self._within_clip = True
            return made

        return run

    def _made_steps(self, side: Side) -> ClipSteps | None:
        cuts = self._subject.cuts(side)
        if cuts is None:
            return None
        what = side, cuts, StepRuns(self, Task(side, step=True)), self.preset, self.limits, self.dtype, self.device
        return ClipSteps(*what, shared=self._peers is not None)
