"""Who has the memory that recordings keep, and whose they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from tvae.pipeline.engine.run.cuda_graph import Recording
from tvae.pipeline.session.recorded_step import RecordedStep
from tvae.pipeline.session.run_inputs import Rows

__all__ = ["MOST_CARRIED", "RECORDED_AHEAD", "RECORDED_AT", "RECORDED_STEP", "Recorder"]

MOST_CARRIED = 256 << 20
"""Bytes of inputs and results that a recording copies in and out, and holds: where there are more (the caches of a long
clip's steps), starting the operations one by one costs less than that."""

RECORDED_AT, RECORDED_AHEAD, RECORDED_STEP = 8, 2, 3
"""The run that is recorded; the same where nobody waits for each result; and the run of a step of clips, of which there
are many. Many sizes come a few times, and recording takes 15 ms more than a run, of which a replay saves 1 to 6 (H200,
pictures of 1024x1024). Most of the 15 is that the device waits for the end of the recording, and in a row of calls it
has other work. There the host's time counts, of which a run takes 10 to 15 ms, and a replay 0.2."""


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
