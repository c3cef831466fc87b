"""One schedule with one set of weights, run again and again: what repeats is done once.

The first run computes what depends on the weights alone and warms the libraries; from the second on, where the preset
wants it, a recorded CUDA graph is replayed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Protocol, cast

import torch
from torch import Tensor

from tvae.kernels.prebuild import wait_for_all
from tvae.pipeline.engine.ir.constants import from_weights
from tvae.pipeline.engine.plan.report import explain
from tvae.pipeline.engine.plan.schedule import Schedule
from tvae.pipeline.engine.run.cuda_graph import Recording
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.engine.run.storage import RowSink, RowSource
from tvae.pipeline.memory.conv_workspaces import SmallWorkspaces
from tvae.pipeline.memory.heap import return_what_is_free
from tvae.pipeline.session.choose_plan import rows_dim

__all__ = ["Recorder", "Runner"]

_MOST_CARRIED = 256 << 20
"""Bytes of inputs and results that a recording copies in and out, and holds: where there are more (the caches of a long
clip's steps), starting the operations one by one costs less than that."""

_log = logging.getLogger("tvae")


class Recorder(Protocol):
    """Has the memory that recordings keep."""

    def record(
        self, run: Callable[[Sequence[Tensor]], list[Tensor]], inputs: Sequence[Tensor], size: int, carried: int
    ) -> Recording:
        """Record a run that takes so many bytes, ``carried`` of them inputs and outputs. Raises RuntimeError where that
        cannot be."""


class Runner:
    """See the module's docstring. weights and constants of the graph by name; record: replay from the second run on;
    spill: folder for buffers on disk; bounded: memory was named."""

    def __init__(
        self,
        plan: Schedule,
        weights: Mapping[str, Tensor],
        *,
        channels_last: bool,
        record: bool,
        spill: Path | None = None,
        bounded: bool = False,
    ) -> None:
        self._bounded = bounded
        self._plan, self._weights, self._channels_last, self._spill = plan, weights, channels_last, spill
        self._constants = from_weights(plan.program, weights)
        self.noisy = any(op.kind == "noise" for op in plan.program.ops)
        ops = plan.program.ops
        self._carried = sum(ops[i].bytes for i in (*plan.program.inputs, *plan.program.outputs))
        worthwhile = not self.noisy and not plan.places and self._carried <= _MOST_CARRIED
        self._record = record and worthwhile
        self._thread = threading.local()
        self._recording: Recording | None = None

    @property
    def recorded(self) -> bool:
        """Is a CUDA graph replayed from now on?"""
        return self._recording is not None

    def run(
        self,
        inputs: Sequence[Tensor | RowSource],
        generator: torch.Generator | None = None,
        sinks: Mapping[int, RowSink] | None = None,
        recorder: Recorder | None = None,
    ) -> list[Tensor]:
        """The outputs for inputs of the schedule's shapes.

        A source among the inputs gives its rows when they are needed. sinks: by number, of the outputs that they take
        by rows; the list is without those. recorder: None records nothing. A list of inputs is emptied where the
        program's caches are handed over.
        """
        places, program = self._plan.places, self._plan.program
        given = [x if i in places else _whole(x) for i, x in zip(program.inputs, inputs, strict=True)]
        if program.handed_over and isinstance(inputs, list):
            inputs.clear()
        sinks = sinks or {}
        by_rows = {program.outputs[n]: sink for n, sink in sinks.items() if program.outputs[n] in places}
        if by_rows or not all(isinstance(x, Tensor) for x in given):
            results = self._executed(given, generator, by_rows)
        else:
            results = [*self._run(cast(list[Tensor], given), generator, recorder)]
        for n, sink in sinks.items():
            result, dim = results[n], rows_dim(sink)
            if result is not None:
                sink.keep(0, result.shape[dim], result).result()
        return [t for n, t in enumerate(results) if n not in sinks and t is not None]

    def _run(
        self, inputs: Sequence[Tensor], generator: torch.Generator | None, recorder: Recorder | None
    ) -> Sequence[Tensor | None]:
        again = getattr(self._thread, "convolved", False)  # by this thread, which has its libraries warm
        if self._record and again and self._recording is None and recorder is not None:
            self._recording = self._recorded(inputs, recorder)
            self._record = self._recording is not None
        if self._recording is not None:
            return self._recording.replay(inputs)
        return self._executed(inputs, generator)

    def _whole(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [t for t in self._executed(tuple(inputs)) if t is not None]  # a recording's inputs stay

    def _executed(
        self,
        inputs: Sequence[Tensor | RowSource],
        generator: torch.Generator | None = None,
        sinks: Mapping[int, RowSink] | None = None,
    ) -> list[Tensor | None]:
        resident = self._bounded and inputs[0].device.type == "cpu"  # what a budget counts there
        first = inputs[0].device.type == "cuda" and not getattr(self._thread, "convolved", False)
        with SmallWorkspaces() if first else nullcontext():
            results = execute(
                self._plan,
                inputs,
                self._weights,
                generator,
                sinks=sinks,
                constants=self._constants,
                channels_last=self._channels_last,
                spill=self._spill,
                before_strip=return_what_is_free if resident else _nothing,
            )
        self._thread.convolved = True
        return results

    def _recorded(self, inputs: Sequence[Tensor], recorder: Recorder) -> Recording | None:
        if inputs[0].device.type != "cuda":
            return None
        wait_for_all()  # while a stream is recorded no thread may load a kernel
        try:
            return recorder.record(self._whole, inputs, explain(self._plan, "").peak_bytes, self._carried)
        except RuntimeError as error:
            _log.info("not recorded as a CUDA graph: %s", str(error).splitlines()[0])
            return None


def _whole(x: Tensor | RowSource) -> Tensor:
    if isinstance(x, Tensor):
        return x
    found: Tensor = x.fetch(0, x.shape[rows_dim(x)]).result()
    return found


def _nothing() -> None:
    """Where nobody counts, nothing is given back."""
