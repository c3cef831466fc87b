"""Records the whole clips of a session that come often, and replays them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from torch import Tensor

from tvae.pipeline.models.calls import Side
from tvae.pipeline.session.clip_steps import ClipSteps
from tvae.pipeline.session.kept_runs import KeptRuns
from tvae.pipeline.session.recorded_clip import MOST_STEPS, RunStep
from tvae.pipeline.session.runner import MOST_CARRIED
from tvae.pipeline.session.task import Task
from tvae.pipeline.session.weights import PreparedWeights

__all__ = ["ClipRecorder"]


class ClipRecorder:
    """runs: the session's, single steps among them. settings: those of a run."""

    def __init__(
        self, runs: KeptRuns, weights: PreparedWeights, settings: Callable[[], AbstractContextManager[object]]
    ) -> None:
        self._runs, self._weights, self._settings = runs, weights, settings

    @staticmethod
    def takes(steps: ClipSteps, shape: tuple[int, ...]) -> bool:
        """Are clips of this shape recorded when they come often, as far as is known before they are?"""
        return steps.count(shape[2]) <= MOST_STEPS and steps.whole_bytes(shape) <= MOST_CARRIED

    def replayed(
        self, side: Side, steps: ClipSteps, x: Tensor, whole: Callable[[RunStep, Tensor], Tensor]
    ) -> tuple[Tensor, Callable[[], bool]] | None:
        """A short clip's result, and whether the weights were written to before it: the answer waits for the device.
        None where there is no recording. One is made when it is due, of what ``whole`` does with a way to make steps.
        """
        if steps.count(x.shape[2]) > MOST_STEPS:
            return None
        shape = tuple(x.shape)
        clip = self._runs.clip((side, shape))
        if not clip.recorded and clip.is_due():
            runners = [self._runs.runner(key) for key in steps.run_keys(Task(side, step=True), shape)]
            with self._settings():
                clip.record(runners, whole, x, steps.whole_bytes(shape), self._runs)
        if not clip.recorded:
            return None
        start = self._weights.start()
        result = clip.replay(x, self._runs)
        return result, self._weights.look(start)
