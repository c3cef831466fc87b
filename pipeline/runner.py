"""One schedule with one set of weights, run again and again: what repeats is done once.

The first run computes what depends on the weights alone and warms the libraries; from the second on, where the preset
wants it, a recorded CUDA graph is replayed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tvae.kernels.ahead import wait_for_all
from tvae.pipeline.engine.boundary import RowSink, RowSource
from tvae.pipeline.engine.constants import from_weights
from tvae.pipeline.engine.execute import execute
from tvae.pipeline.engine.plan import explain
from tvae.pipeline.engine.record import Recording
from tvae.pipeline.engine.schedule import Schedule
from tvae.pipeline.planning import rows_dim

__all__ = ["Runner"]

_RECORDED_SHARE = 0.25
"""A recording keeps its buffers for as long as it lives: at most this share of the memory that is free."""

_log = logging.getLogger("tvae")


class Runner:
    """See the module's docstring. weights and constants of the graph by name; record: replay from the second run on;
    spill: folder for buffers on disk."""

    def __init__(
        self,
        plan: Schedule,
        weights: Mapping[str, Tensor],
        *,
        channels_last: bool,
        record: bool,
        spill: Path | None = None,
    ) -> None:
        self._plan, self._weights, self._channels_last, self._spill = plan, weights, channels_last, spill
        self._constants = from_weights(plan.program, weights)
        noisy = any(op.kind == "noise" for op in plan.program.ops)
        self._record, self._warm = record and not noisy and not plan.places, False
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
    ) -> list[Tensor]:
        """The outputs for inputs of the schedule's shapes.

        A source among the inputs gives its rows when they are needed. sinks: by number, of the outputs that they take
        by rows; the list is without those.
        """
        places, program = self._plan.places, self._plan.program
        given = [x if i in places else _whole(x) for i, x in zip(program.inputs, inputs, strict=True)]
        whole = [x for x in given if isinstance(x, Tensor)]
        sinks = sinks or {}
        by_rows = {program.outputs[n]: sink for n, sink in sinks.items() if program.outputs[n] in places}
        if len(whole) < len(given) or by_rows:
            results = self._executed(given, generator, by_rows)
        else:
            results = [*self._run(whole, generator)]
        for n, sink in sinks.items():
            result, dim = results[n], rows_dim(sink)
            if result is not None:
                sink.keep(0, result.shape[dim], result).result()
        return [t for n, t in enumerate(results) if n not in sinks and t is not None]

    def _run(self, inputs: Sequence[Tensor], generator: torch.Generator | None) -> Sequence[Tensor | None]:
        if self._record and self._warm and self._recording is None:
            self._recording = self._recorded(inputs)
            self._record = self._recording is not None
        self._warm = True
        if self._recording is not None:
            return self._recording.replay(inputs)
        return self._executed(inputs, generator)

    def _whole(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [t for t in self._executed(inputs) if t is not None]

    def _executed(
        self,
        inputs: Sequence[Tensor | RowSource],
        generator: torch.Generator | None = None,
        sinks: Mapping[int, RowSink] | None = None,
    ) -> list[Tensor | None]:
        return execute(
            self._plan,
            inputs,
            self._weights,
            generator,
            sinks=sinks,
            constants=self._constants,
            channels_last=self._channels_last,
            spill=self._spill,
        )

    def _recorded(self, inputs: Sequence[Tensor]) -> Recording | None:
        device = inputs[0].device
        if device.type != "cuda":
            return None
        free = torch.cuda.mem_get_info(device)[0]
        if explain(self._plan, "").peak_bytes > _RECORDED_SHARE * free:
            return None
        wait_for_all()  # while a stream is recorded no thread may load a kernel
        try:
            return Recording(self._whole, inputs)
        except RuntimeError as error:
            _log.info("not recorded as a CUDA graph: %s", str(error).splitlines()[0])
            return None


def _whole(x: Tensor | RowSource) -> Tensor:
    if isinstance(x, Tensor):
        return x
    found: Tensor = x.fetch(0, x.shape[rows_dim(x)]).result()
    return found
