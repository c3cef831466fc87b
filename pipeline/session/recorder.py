"""Who has the memory that recordings keep, and whose they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from tvae.pipeline.engine.run.cuda_graph import Recording
from tvae.pipeline.session.recorded_step import RecordedStep
from tvae.pipeline.session.run_inputs import Rows

__all__ = ["Recorded", "Recorder"]


class Recorded(Protocol):
    """Has a recording."""

    def drop_recording(self) -> None:
        """Let go of it; the run goes on without, and may be recorded again when it has come often enough."""


class Recorder(Protocol):
    """Has the memory that recordings keep. ahead: whoever computes gives the next call before the result of this one
    is there."""

    ahead: bool

    def record(
        self,
        owner: Recorded,
        run: Callable[[Sequence[Tensor]], list[Tensor]],
        inputs: Sequence[Tensor],
        size: int,
        carried: int,
        kept: Sequence[Tensor] = (),
    ) -> Recording:
        """Record a run that takes so many bytes, ``carried`` of them inputs and outputs that a replay copies. kept:
        further inputs, which stay where they are. Raises RuntimeError where that cannot be."""

    def used(self, owner: Recorded) -> None:
        """Its recording is wanted again."""

    def step_taking(self, caches: Sequence[Rows]) -> RecordedStep | None:
        """The recorded step that takes such caches; None where there is none."""
