"""The first step of a clip as a CUDA graph, which leaves its caches where the recorded steps after it read them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from torch import Tensor

from tvae.pipeline.engine.ir.layout import copy_into
from tvae.pipeline.session.recorded_step import Record, RecordedStep, Run

__all__ = ["RecordedFirstStep"]


class RecordedFirstStep:
    """See the module's docstring. It takes a chunk alone."""

    def __init__(self, run: Run, record: Record, after: RecordedStep) -> None:
        """after: the step that takes caches like those that this one leaves. Raises what ``record`` raises."""
        memory = after.begins_with

        def beginning(inputs: Sequence[Tensor]) -> list[Tensor]:
            result, *left = run(inputs, memory)
            for ours, new in zip(memory, left, strict=True):
                if new.data_ptr() != ours.data_ptr():
                    copy_into(ours, new)
            return [result]

        self._after, self._recording = weakref.ref(after), record(beginning, ())

    @property
    def alone(self) -> bool:
        """Has the step after it gone, and the memory that this one writes to?"""
        return self._after() is None

    def takes(self, _inputs: Sequence[Tensor]) -> bool:
        """May a step be a replay? Not while somebody has caches in that memory."""
        after = self._after()
        return after is not None and after.free

    def replay(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The result, in memory of its own, and the caches."""
        after = self._after()
        assert after is not None, "the caller asked"
        (result,) = self._recording.replay(inputs)
        return [result, *after.begun()]
