"""The steps of one side of a model: computed and planned, with the caches between them where there is room for them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from tvae.pipeline.device import uses_channels_last
from tvae.pipeline.engine.plan.report import Plan
from tvae.pipeline.engine.run.storage import RowSink, RowSource
from tvae.pipeline.errors import PlanError
from tvae.pipeline.memory.limits import Limits
from tvae.pipeline.memory.offloaded_cache import OffloadedCache, height_of, holdable
from tvae.pipeline.models.calls import Call, Side
from tvae.pipeline.models.stepping import Cuts
from tvae.pipeline.models.streaming import Cache
from tvae.pipeline.session.choose_plan import Example
from tvae.pipeline.session.clip_plan import ClipPlan, StepPlan
from tvae.pipeline.session.kept_runs import run_key
from tvae.pipeline.session.task import Task
from tvae.presets import Preset

__all__ = ["ClipSteps", "last_is_alone"]


class Runs(Protocol):
    """Runs and plans single steps; see ``session.step_runs``."""

    def compute(
        self, inputs: Sequence[Tensor | RowSource], sinks: Mapping[int, RowSink], *, beside: int, last: bool
    ) -> list[Tensor]:
        """The results that no sink takes; of the last step there are no caches."""

    def check(
        self, inputs: Sequence[Tensor | RowSource], sinks: Mapping[int, int], *, running: bool, beside: int, last: bool
    ) -> None:
        """Raises PlanError."""

    def plan(self, inputs: Sequence[Tensor | RowSource], sinks: Mapping[int, int], *, beside: int, last: bool) -> Plan:
        """What ``compute`` would do."""

    def shapes(self, inputs: Sequence[Tensor | RowSource]) -> list[tuple[int, ...]]:
        """Of all results."""


@dataclass(frozen=True)
class _Step:
    """One kind of step: frames of its chunk, how often it comes, what it is given, and the caches behind it."""

    frames: int
    count: int
    inputs: Sequence[Tensor | RowSource]
    sinks: Mapping[int, int]
    caches: Sequence[tuple[int, ...]]
    last: bool


class ClipSteps:
    """See the module's docstring."""

    def __init__(
        self,
        side: Side,
        cuts: Cuts,
        runs: Runs,
        preset: Preset,
        limits: Limits,
        dtype: torch.dtype,
        device: torch.device,
        *,
        shared: bool = False,
    ) -> None:
        """shared: with other ranks, each of which has its own rows of the caches, on its device."""
        self.cuts, self._shared = cuts, shared
        self._side: Side = side
        self._runs = runs
        self._preset, self._limits, self._dtype, self._device = preset, limits, dtype, device
        self._away: dict[tuple[tuple[int, ...], ...], bool] = {}
        self._checked: dict[tuple[int, ...], int] = {}

    def run(self, chunk: Tensor, caches: list[Cache], last: bool = False, beside: int = 0) -> list[Cache]:
        """[result, *caches] of a step, which empties the list it is given; what does not fit lives elsewhere. last: the
        result alone. beside: of a clip that was checked, what ``check`` gave."""
        chunk = chunk.to(self._device, self._dtype).contiguous()  # a capture would be bound to other strides
        shapes = [tuple(cache.shape) for cache in caches]
        # on other devices a clip's result is there when its steps run, and is found where memory is measured
        counted = beside if self._device.type == "cpu" else 0
        if not self._too_large(tuple(chunk.shape), shapes, running=True, beside=beside, last=last):
            # a list that the step empties, so that caches can go as soon as they have been read
            inputs: list[Tensor | RowSource] = [chunk]
            inputs += ((c.cpu() if isinstance(c, OffloadedCache) else c).to(self._device) for c in _emptied(caches))
            try:
                return [*self._runs.compute(inputs, {}, beside=counted, last=last)]
            except PlanError:  # there is less memory than when this was looked at
                if self._shared or len(inputs) <= len(shapes):
                    raise  # it had begun
                self._away[self._kind(tuple(chunk.shape), shapes, beside, last)] = True
                caches = [cache for cache in inputs[1:] if isinstance(cache, Tensor)]
                inputs.clear()
        made = self._runs.shapes([chunk, *map(self._example, shapes)])[: 1 if last else None]
        sinks = {n: self._held(shape) for n, shape in enumerate(made) if n and holdable(shape)}
        held = [self._elsewhere(cache) for cache in _emptied(caches)]
        rest = iter(self._runs.compute([chunk, *held], sinks, beside=counted, last=last))
        for cache in held:
            if isinstance(cache, OffloadedCache):
                cache.close()
        return [sinks[n] if n in sinks else next(rest) for n in range(len(made))]

    def result_shape(self, shape: tuple[int, ...], sizes: Sequence[int]) -> tuple[int, ...]:
        """Of the whole clip's result: shape is that of the clip, sizes those of its chunks."""
        frames, caches, made = 0, list[tuple[int, ...]](), list[tuple[int, ...]]()
        for size, count in [(sizes[0], 1), *Counter(sizes[1:]).items()]:
            made = self._made((*shape[:2], size, *shape[3:]), caches)
            frames += count * made[0][2]
            caches = caches or made[1:]
        return (*made[0][:2], frames, *made[0][3:])

    def _made(self, chunk: tuple[int, ...], caches: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Shapes of a step's result and of the caches it leaves."""
        first = Example(chunk, self._dtype, self._device)
        return self._runs.shapes([first, *map(self._example, caches)])

    def plan(self, shape: tuple[int, ...], *, whole: bool = False) -> ClipPlan:
        """What a clip of this shape would take. Computes nothing. whole: it and its result are on the device, too."""
        beside = self.whole_bytes(shape) if whole else 0
        steps: list[StepPlan] = []

        def planned(step: _Step) -> None:
            found = self._runs.plan(step.inputs, step.sinks, beside=beside, last=step.last)
            steps.append(StepPlan(step.frames, step.count, found))

        each = self._each(shape, beside, planned, running=False, ends=whole)
        caches = each[-1].caches
        size = sum(math.prod(s) for s in caches) * self._dtype.itemsize
        away = any(step.sinks or not all(isinstance(x, Tensor) for x in step.inputs) for step in each)
        place = ("disk" if self._device.type == "cpu" else "host") if away else "device"
        return ClipPlan(self._side, shape, tuple(steps), len(caches), size, place, beside)

    def check(self, shape: tuple[int, ...]) -> int:
        """Raises PlanError where a step of such a clip, which is there, does not keep the limits beside its result.
        Bytes that were counted beside each step."""
        if shape not in self._checked:
            # on a CPU an input counts beside what is resident, in every call: nobody knows whether it is part of that
            there = 0 if self._device.type == "cpu" else math.prod(shape) * self._dtype.itemsize
            beside = self.whole_bytes(shape) - there

            def check(step: _Step) -> None:
                self._runs.check(step.inputs, step.sinks, running=True, beside=beside, last=step.last)

            self._each(shape, beside, check, running=True, ends=True)
            self._checked[shape] = beside
        return self._checked[shape]

    def _each(
        self, shape: tuple[int, ...], beside: int, do: Callable[[_Step], None], *, running: bool, ends: bool
    ) -> list[_Step]:
        """Every kind of step of a clip. ends: whoever runs it says which step is the last, if ``last_is_alone``. Raises
        the refusal that names most, if there is any."""
        sizes = self._sizes(shape[2])
        caches: list[tuple[int, ...]] = []
        found, refused = list[_Step](), list[PlanError]()
        kinds = [(sizes[0], 1), *Counter(sizes[1:]).items()]
        for n, (frames, count) in enumerate(kinds):
            chunk = (*shape[:2], frames, *shape[3:])
            inputs: list[Tensor | RowSource] = [self._chunk(chunk), *map(self._example, caches)]
            last = ends and n == len(kinds) - 1 and last_is_alone(sizes)
            made = self._runs.shapes(inputs)[: 1 if last else None]
            sinks: dict[int, int] = {}
            self._away.pop(self._kind(chunk, caches, beside, last), None)  # memory is what it is now
            if self._too_large(chunk, caches, running=running, beside=beside, last=last):
                inputs[1:] = [self._rows(s) if holdable(s) else self._example(s) for s in caches]
                sinks = {n: height_of(s) for n, s in enumerate(made) if n and holdable(s)}
            caches = caches or made[1:]
            found.append(_Step(frames, count, inputs, sinks, caches, last))
            try:
                do(found[-1])
            except PlanError as error:
                refused.append(error)
        if refused:
            try:
                raise max(refused, key=lambda error: error.enough or 0)
            finally:
                refused.clear()  # or this frame and the error would hold each other
        return found

    def count(self, frames: int) -> int:
        """Steps of a clip of so many frames."""
        return len(self._sizes(frames))

    def run_keys(self, task: Task, shape: tuple[int, ...]) -> list[Any]:
        """Of the runs that a clip of this shape makes, step by step; of those whose caches stay on the device."""
        kinds = self._each(shape, 0, lambda _step: None, running=True, ends=True)
        keys = [run_key(task, kind.inputs, Call(last=kind.last), kind.sinks) for kind in kinds]
        return [key for kind, key in zip(kinds, keys, strict=True) for _ in range(kind.count)]

    def whole_bytes(self, shape: tuple[int, ...]) -> int:
        """Of a clip and its result."""
        result = self.result_shape(shape, self._sizes(shape[2]))
        return (math.prod(shape) + math.prod(result)) * self._dtype.itemsize

    def _sizes(self, frames: int) -> list[int]:
        return [*self.cuts.sizes(self.cuts.used(frames))]

    def _too_large(
        self,
        chunk: tuple[int, ...],
        caches: Sequence[tuple[int, ...]],
        *,
        running: bool,
        beside: int = 0,
        last: bool = False,
    ) -> bool:
        """Can a step not hold the caches it reads and those it leaves on the device?"""
        if self._shared:
            return False
        key = self._kind(chunk, caches, beside, last)
        if key not in self._away and self._caches_alone_are(chunk, caches, last):
            self._away[key] = True
        if key not in self._away:
            inputs: list[Tensor | RowSource] = [self._chunk(chunk), *map(self._example, caches)]
            try:
                self._runs.check(inputs, {}, running=running, beside=beside, last=last)
                self._away[key] = False
            except PlanError:
                self._away[key] = True
        return self._away[key]

    @staticmethod
    def _kind(
        chunk: tuple[int, ...], caches: Sequence[tuple[int, ...]], beside: int, last: bool
    ) -> tuple[tuple[int, ...], ...]:
        """What decides where the caches of a step are, beside the memory that there is."""
        return (last, beside), chunk, *caches

    def _caches_alone_are(self, chunk: tuple[int, ...], caches: Sequence[tuple[int, ...]], last: bool) -> bool:
        """Those that a step reads, or those that it leaves, more than everything that may be held? Sooner said than
        that no plan keeps a budget."""
        if self._limits.vram is None:
            return False
        left = () if last else self._made(chunk, caches)[1:]
        most = max(sum(math.prod(shape) for shape in shapes) for shapes in (caches, left))
        return most * self._dtype.itemsize > self._limits.vram

    def _elsewhere(self, cache: Cache) -> Cache:
        if isinstance(cache, OffloadedCache):
            return cache
        shape = tuple(cache.shape)
        assert isinstance(cache, Tensor), "ranks keep their rows of caches on the device"
        return self._held(shape).take(cache) if holdable(shape) else cache.to(self._device)

    def _held(self, shape: tuple[int, ...]) -> OffloadedCache:
        last = uses_channels_last(self._preset, self._dtype, self._device)
        return OffloadedCache(shape, self._dtype, self._device, last, self._limits.spill)

    def _chunk(self, shape: tuple[int, ...]) -> Tensor:
        """Stands for a chunk that is only planned for: takes no memory."""
        return torch.empty((), dtype=self._dtype, device=self._device).expand(shape)

    def _example(self, shape: tuple[int, ...]) -> Tensor:
        """Stands for a tensor on the device that is only planned for."""
        return torch.empty(shape, dtype=self._dtype, device="meta")

    def _rows(self, shape: tuple[int, ...]) -> RowSource:
        return Example(shape, self._dtype, self._device, height_of(shape))


def last_is_alone(sizes: Sequence[int]) -> bool:
    """Is the last step of a clip, cut into chunks of these sizes, the only one of its kind?

    Then it is planned without the caches that nobody will read, and the clip takes less memory. Where other steps are
    like it, those decide what the clip takes, and one plan serves them all.
    """
    return len(sizes) == 1 or sizes[1:].count(sizes[-1]) == 1


def _emptied(caches: list[Cache]) -> Iterator[Cache]:
    """One after the other, each without a place in the list."""
    while caches:
        yield caches.pop(0)
