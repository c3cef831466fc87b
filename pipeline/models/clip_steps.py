"""The steps of one side of a model: computed and planned, with the caches between them where there is room for them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from tvae.pipeline.budget import Limits
from tvae.pipeline.captures import Call
from tvae.pipeline.clip_plan import ClipPlan, StepPlan
from tvae.pipeline.compiled import Compiled
from tvae.pipeline.engine.boundary import RowSink, RowSource
from tvae.pipeline.errors import PlanError
from tvae.pipeline.hardware import backend_settings
from tvae.pipeline.held import Held, height_of, holdable
from tvae.pipeline.models.reference import Side
from tvae.pipeline.models.streaming import Cache, Cuts
from tvae.pipeline.planning import Example
from tvae.presets import Preset

__all__ = ["ClipSteps"]

Compute = Callable[[Sequence[Tensor | RowSource], Mapping[int, RowSink]], list[Tensor]]
"""(inputs, sinks by number of the result) -> the results that no sink takes."""


class ClipSteps:
    """See the module's docstring. compiled, compute: of the step."""

    def __init__(
        self,
        side: Side,
        cuts: Cuts,
        compiled: Compiled,
        compute: Compute,
        preset: Preset,
        limits: Limits,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.cuts = cuts
        self._side: Side = side
        self._compiled, self._compute = compiled, compute
        self._preset, self._limits, self._dtype, self._device = preset, limits, dtype, device
        self._away: dict[tuple[tuple[int, ...], ...], bool] = {}

    def run(self, chunk: Tensor, caches: list[Cache]) -> list[Cache]:
        """[result, *caches] of a step, which empties the list it is given; what does not fit lives elsewhere."""
        chunk = chunk.to(self._device, self._dtype).contiguous()  # a capture would be bound to other strides
        shapes = [tuple(cache.shape) for cache in caches]
        if not self._too_large(tuple(chunk.shape), shapes):
            # a list that the step empties, so that caches can go as soon as they have been read
            inputs: list[Tensor | RowSource] = [chunk]
            inputs += ((c.cpu() if isinstance(c, Held) else c).to(self._device) for c in _emptied(caches))
            return [*self._compute(inputs, {})]
        made = self._compiled.shapes([chunk, *map(self._example, shapes)], Call())
        sinks = {n: self._held(shape) for n, shape in enumerate(made) if n and holdable(shape)}
        held = [self._elsewhere(cache) for cache in _emptied(caches)]
        rest = iter(self._compute([chunk, *held], sinks))
        for cache in held:
            if isinstance(cache, Held):
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
        return self._compiled.shapes([first, *map(self._example, caches)], Call())

    def plan(self, shape: tuple[int, ...]) -> ClipPlan:
        """What a clip of this shape would take. Computes nothing."""
        sizes = list(self.cuts.sizes(self.cuts.used(shape[2])))
        caches: list[tuple[int, ...]] = []
        steps: list[StepPlan] = []
        away = False
        for frames, count in [(sizes[0], 1), *Counter(sizes[1:]).items()]:
            chunk = (*shape[:2], frames, *shape[3:])
            first = torch.empty(chunk, dtype=self._dtype, device=self._device)
            made = self._compiled.shapes([first, *map(self._example, caches)], Call())
            inputs: list[Tensor | RowSource] = [first, *map(self._example, caches)]
            sinks: dict[int, int] = {}
            if self._too_large(chunk, caches):
                away = True
                inputs[1:] = [self._rows(s) if holdable(s) else self._example(s) for s in caches]
                sinks = {n: height_of(s) for n, s in enumerate(made) if n and holdable(s)}
            with backend_settings(
                self._preset, self._dtype, bounded=self._limits.vram is not None, device=self._device
            ):
                steps.append(StepPlan(frames, count, self._compiled.plan(inputs, self._limits, Call(), sinks=sinks)))
            caches = caches or made[1:]
        size = sum(math.prod(s) for s in caches) * self._dtype.itemsize
        place = ("disk" if self._device.type == "cpu" else "host") if away else "device"
        return ClipPlan(self._side, shape, tuple(steps), len(caches), size, place)

    def _too_large(self, chunk: tuple[int, ...], caches: Sequence[tuple[int, ...]]) -> bool:
        """Can a step not hold the caches it reads and those it leaves on the device?"""
        key = chunk, *caches
        if key not in self._away:
            first = torch.empty(chunk, dtype=self._dtype, device=self._device)
            try:
                with backend_settings(
                    self._preset, self._dtype, bounded=self._limits.vram is not None, device=self._device
                ):
                    self._compiled.check([first, *map(self._example, caches)], self._limits, Call())
                self._away[key] = False
            except PlanError:
                self._away[key] = True
        return self._away[key]

    def _elsewhere(self, cache: Cache) -> Cache:
        if isinstance(cache, Held):
            return cache
        shape = tuple(cache.shape)
        return self._held(shape).take(cache) if holdable(shape) else cache.to(self._device)

    def _held(self, shape: tuple[int, ...]) -> Held:
        last = self._preset.memory_layout == "channels_last"
        return Held(shape, self._dtype, self._device, last, self._limits.spill)

    def _example(self, shape: tuple[int, ...]) -> Tensor:
        """Stands for a tensor on the device that is only planned for."""
        return torch.empty(shape, dtype=self._dtype, device="meta")

    def _rows(self, shape: tuple[int, ...]) -> RowSource:
        return Example(shape, self._dtype, self._device, height_of(shape))


def _emptied(caches: list[Cache]) -> Iterator[Cache]:
    """One after the other, each without a place in the list."""
    while caches:
        yield caches.pop(0)
