"""The steps of a short clip as one CUDA graph.

The first steps of a clip are over on the device before Python has started the operations of the next. A long clip makes
up for that, since Python is ahead later on; of a short one it is a tenth. Steps of small pictures are recorded one by
one (``runner``); a clip that comes as often is recorded whole, so that no cache is copied from step to step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from tvae.pipeline.engine.run.cuda_graph import Recording
from tvae.pipeline.models.streaming import Cache
from tvae.pipeline.session.clip_plan import RECORDED_HOLES
from tvae.pipeline.session.recorder import Recorder
from tvae.pipeline.session.runner import MOST_CARRIED, RECORDED_STEP, Runner

__all__ = ["MOST_STEPS", "RecordedClip"]

MOST_STEPS = 8
"""Of a clip that is recorded: with more, less than a twentieth of the time is left to gain."""

_log = logging.getLogger("tvae")
RunStep = Callable[[Tensor, list[Cache], bool], list[Cache]]
"""See ``ClipSteps.run``."""


class RecordedClip:
    """Of clips of one shape on one side: counts them, and has the recording once they came often enough."""

    def __init__(self) -> None:
        self._times, self._refused = 0, False
        self._recording: Recording | None = None
        self._runners: tuple[Runner, ...] = ()

    @property
    def recorded(self) -> bool:
        """Is there a recording that reads the weights where they are?"""
        return self._recording is not None and all(runner.weights_in_place() for runner in self._runners)

    def drop_recording(self) -> None:
        """See ``kept_runs.Recorded``."""
        self._recording, self._runners, self._times = None, (), 0

    def is_due(self) -> bool:
        """Has it come often enough by now? Asked once a call."""
        self._times += 1
        return self._times >= RECORDED_STEP and self._recording is None and not self._refused

    def record(
        self,
        runners: Sequence[Runner | None],
        whole: Callable[[RunStep, Tensor], Tensor],
        x: Tensor,
        carried: int,
        recorder: Recorder,
    ) -> None:
        """Record what ``whole`` makes of x with the runs of its steps, where that can be. carried: bytes of x and of
        the result."""
        ready = [runner for runner in runners if runner is not None and runner.repeats]
        self._refused = carried > MOST_CARRIED or len(ready) < len(runners)
        if self._refused or not all(runner.warm for runner in ready):
            return

        def run(inputs: Sequence[Tensor]) -> list[Tensor]:
            steps: Iterator[Runner] = iter(ready)

            def step(chunk: Tensor, caches: list[Cache], _last: bool) -> list[Cache]:
                given: list[Any] = [chunk.contiguous(), *caches]
                caches.clear()
                return [*next(steps).started(given)]

            return [whole(step, inputs[0])]

        size = int(max(runner.planned_bytes for runner in ready) * RECORDED_HOLES) + carried
        try:
            self._recording = recorder.record(self, run, [x], size, carried)
            self._runners = tuple(ready)
        except RuntimeError as error:
            self._refused = True
            _log.info("a clip is not recorded as a CUDA graph: %s", str(error).splitlines()[0])

    def replay(self, x: Tensor, recorder: Recorder) -> Tensor:
        """The result for a clip like the one that was recorded."""
        assert self._recording is not None
        recorder.used(self)
        return self._recording.replay([x])[0]
