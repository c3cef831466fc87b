"""One schedule with one set of weights, run again and again: what repeats is done once.

The first run warms the libraries. When a size comes often, and the preset wants it, its run is recorded as a CUDA
graph; that result, too, is a replay.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from tvae.kernels.definitions import definitions
from tvae.kernels.prebuild import under_way
from tvae.pipeline.engine.ir.program import Op, compute_constants
from tvae.pipeline.engine.plan.schedule import Schedule
from tvae.pipeline.engine.run.cuda_graph import Recording
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.engine.run.rank_rows import held, room_for_next
from tvae.pipeline.engine.run.storage import OwnRows, RowSink, RowSource
from tvae.pipeline.memory.conv_workspaces import SmallWorkspaces
from tvae.pipeline.session.between_strips import beat, return_and_beat
from tvae.pipeline.session.choose_plan import rows_dim
from tvae.pipeline.session.pace import Pace
from tvae.pipeline.session.recorded_first_step import RecordedFirstStep
from tvae.pipeline.session.recorded_step import RecordedStep
from tvae.pipeline.session.recorder import MOST_CARRIED, RECORDED_AHEAD, RECORDED_AT, RECORDED_STEP, Recorder
from tvae.pipeline.session.run_inputs import bytes_here, left_here, plain, whole, with_rows
from tvae.pipeline.session.shared_run import SharedRun
from tvae.pipeline.session.weights import places_of

__all__ = ["MOST_CARRIED", "RECORDED_AHEAD", "RECORDED_AT", "RECORDED_STEP", "Runner"]

_log = logging.getLogger("tvae")


class Runner:
    """See the module's docstring. weights and constants of the graph by name; made: what other runs made of them;
    planned: counts the bytes that a run takes; record: replay runs that come often; spill: folder for buffers on disk;
    bounded: memory was named; shared: with other ranks; plainly: does a run take the definitions? Not with them."""

    def __init__(
        self,
        plan: Schedule,
        weights: Mapping[str, Tensor],
        made: MutableMapping[Op, Tensor] | None = None,
        *,
        planned: Callable[[], int],
        channels_last: bool,
        record: bool,
        spill: Path | None = None,
        bounded: bool = False,
        shared: SharedRun | None = None,
        plainly: Callable[[], bool] | None = None,
    ) -> None:
        self._planned, self._bounded, self._shared = planned, bounded, shared
        self._plainly = plainly if shared is None else None
        self._plan, self._weights, self._channels_last, self._spill = plan, weights, channels_last, spill
        self._constants = compute_constants(plan.program, weights, made)
        self.noisy = any(op.kind == "noise" for op in plan.program.ops)
        program = plan.program
        (first, *taken), (result, *left) = program.inputs, program.outputs
        alike = RecordedStep.fits(
            *([(program.ops[i].shape, program.ops[i].dtype) for i in ids] for ids in (taken, left))
        )
        steps = shared is not None and shared.steps
        self._keeps, self._begins = steps and alike, steps and not taken and len(left) > 0
        self._leaves = [left_here(plan, i) for i in left] if self._begins else []
        self._carried = sum(bytes_here(plan, i) for i in (first, result))
        self._caches = 0 if self._keeps else sum(bytes_here(plan, i) for i in (*taken, *left))
        small = self._carried + (0 if self._begins else self._caches) <= MOST_CARRIED
        self._record = record and self.repeats and small
        self._in_steps, self._places, self._thread = bool(taken or left), places_of(weights), threading.local()
        self._recording: Recording | RecordedStep | RecordedFirstStep | None = None
        self._messages = 0  # of a replay
        self._times, self._pace = 0, Pace(starts_more=self._in_steps or shared is not None)

    @property
    def recorded(self) -> bool:
        """Is a CUDA graph replayed from now on?"""
        return self._recording is not None

    @property
    def step(self) -> RecordedStep | None:
        """The recording, where it is of a step that takes caches."""
        return self._recording if isinstance(self._recording, RecordedStep) else None

    @property
    def repeats(self) -> bool:
        """Does every run start the same operations, on the device alone?"""
        return not self.noisy and not self._plan.places and (self._shared is None or self._shared.recordable)

    @property
    def warm(self) -> bool:
        """Could a run in this thread be recorded now?"""
        convolved = getattr(self._thread, "convolved", False)  # by this thread, which has its libraries warm
        return convolved and not under_way()  # while a stream is recorded no thread may load a kernel

    @property
    def planned_bytes(self) -> int:
        """That a run takes, inputs and outputs among them."""
        return self._planned()

    def started(self, inputs: list[Tensor]) -> list[Tensor]:
        """The outputs, every operation being started from here. The list is emptied as in ``run``."""
        return [t for t in self._executed(inputs) if t is not None]

    def weights_in_place(self) -> bool:
        """Does the memory that it reads still belong to its weights? ``untyped_storage().resize_(0)``, as sharded
        training does it, takes it from them, whoever else holds a view."""
        return places_of(self._weights) == self._places

    def drop_recording(self) -> None:
        """Run without one, until the size has come as often again."""
        self._recording, self._times = None, 0

    def at_hand(self, inputs: Sequence[Tensor], recorder: Recorder) -> Callable[[], list[Tensor]] | None:
        """What ``run`` gives, by a replay that a call of this starts; None where there is none. What needs no other
        rank, such as to bring the inputs to where it reads them, is done before."""
        recording, shared = self._recording, self._shared
        if recording is None or isinstance(recording, RecordedStep | RecordedFirstStep) or shared is None:
            return None
        given = list(inputs)
        if self._plan.program.ranks is not None:
            given = [cast(Tensor, self._held(*each)) for each in zip(self._plan.program.inputs, given, strict=True)]
        recorder.used(self)
        recording.bring(given)
        device = inputs[0].device

        def replayed() -> list[Tensor]:
            found = [*recording.start()]
            shared.peers.pass_on(self._messages)
            return [t for t in shared.results(found, device) if isinstance(t, Tensor)]

        return replayed

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
        given = [x if i in places else whole(x) for i, x in zip(program.inputs, inputs, strict=True)]
        if program.handed_over and isinstance(inputs, list):
            inputs.clear()
        sinks = sinks or {}
        if self._shared is not None:
            return self._together(self._shared, given, generator, recorder)
        by_rows = {program.outputs[n]: sink for n, sink in sinks.items() if program.outputs[n] in places}
        results: list[Tensor | None]
        if by_rows or not all(isinstance(x, Tensor) for x in given):
            results = self._executed(given, generator, by_rows)
        else:
            results = self._repeated(cast(list[Tensor | OwnRows], given), generator, recorder)
        for n, sink in sinks.items():
            result, dim = results[n], rows_dim(sink)
            if result is not None:
                sink.keep(0, result.shape[dim], result).result()
        return [t for n, t in enumerate(results) if n not in sinks and t is not None]

    def _repeated(
        self, given: Sequence[Tensor | OwnRows], generator: torch.Generator | None, recorder: Recorder | None
    ) -> list[Tensor | None]:
        """A replay where that is due and can be."""
        if isinstance(self._recording, RecordedFirstStep) and self._recording.alone:
            self.drop_recording()
        if recorder is not None and self._recording is not None:
            recorder.used(self)
        elif recorder is not None and self._is_due(recorder):
            # before the run, so that its results are not there as well
            self._recording = self._recorded(given, recorder)
            self._record = self._recording is not None
        recording = self._recording
        if recording is None:
            return self._executed(given, generator)
        if isinstance(recording, RecordedStep | RecordedFirstStep) and not recording.takes(plain(given)):
            return self._executed(given, generator)
        found: list[Tensor | None] = [*recording.replay(plain(given))]
        if self._shared is not None:
            self._shared.peers.pass_on(self._messages)
        return found

    def _together(
        self,
        shared: SharedRun,
        given: list[Any],
        generator: torch.Generator | None,
        recorder: Recorder | None,
    ) -> list[Any]:
        """With the other ranks: results as the session's caller wants them, or those of a step. Each rank may record
        when it likes: to another it makes no difference what starts its messages."""
        found: list[Tensor | None] = [None] * len(self._plan.program.outputs)
        device = given[0].device
        if self.recorded and not self.weights_in_place():
            self._recording, self._record = None, False
        if self._plan.program.ranks is None:  # a step that ranks cannot share may follow one that they did
            given[:] = [shared.put_together(x) if isinstance(x, OwnRows) else x for x in given]
        if shared.idle:
            pass
        elif self.repeats:  # and so nothing is given by rows
            if self._plan.program.ranks is not None:  # so that a recording has no others' rows
                given[:] = [self._held(*each) for each in zip(self._plan.program.inputs, given, strict=True)]
            found = self._repeated(cast(list[Tensor | OwnRows], given), generator, recorder)
        else:
            found = self._executed(given, generator)
        return [value for value in shared.results(found, device) if value is not None]

    def _passed(self) -> int:
        """Messages to other ranks."""
        return 0 if self._shared is None else self._shared.peers.messages()

    def _held(self, id_: int, x: Tensor | OwnRows) -> Tensor | OwnRows:
        return held(self._plan, id_, x) if isinstance(x, Tensor) else x

    def _is_due(self, recorder: Recorder) -> bool:
        """Is this run to be recorded? A first step with large caches is where a recording takes them."""
        self._times += 1
        many = RECORDED_STEP if self._in_steps else RECORDED_AHEAD if recorder.ahead else RECORDED_AT
        due = self._record and self._times >= many and self.warm and not self._pace.device_bound
        small = self._carried + self._caches <= MOST_CARRIED
        return due and (small or recorder.step_taking(self._leaves) is not None)

    def _executed(
        self,
        inputs: Sequence[Tensor | RowSource],
        generator: torch.Generator | None = None,
        sinks: Mapping[int, RowSink] | None = None,
        results: Mapping[int, Tensor] | None = None,
    ) -> list[Tensor | None]:
        kind = inputs[0].device.type
        resident = self._bounded and kind == "cpu"  # what a budget counts there
        convolved = getattr(self._thread, "convolved", False)
        plainly = self._plainly is not None and self._plainly()
        timed = self._record and kind == "cuda" and results is None and not torch.cuda.is_current_stream_capturing()
        with (
            self._pace.watched() if timed else nullcontext(),
            SmallWorkspaces(self._planned).all() if kind == "cuda" and not convolved else nullcontext(),
            definitions() if plainly else nullcontext(),
        ):
            found = execute(
                self._plan,
                inputs,
                self._weights,
                generator,
                sinks=sinks,
                constants=self._constants,
                channels_last=self._channels_last,
                spill=self._spill,
                before_strip=return_and_beat if resident else beat,
                exchange=None if self._shared is None else self._shared.exchange,
                results=results,
            )
        self._thread.convolved = convolved or not plainly  # kernels load what they need when they first run
        return found

    def _recorded(
        self, given: Sequence[Tensor | OwnRows], recorder: Recorder
    ) -> Recording | RecordedStep | RecordedFirstStep | None:
        inputs, planned, before = plain(given), self._planned(), self._passed()

        def run(inputs: Sequence[Tensor], results: Sequence[Tensor] = ()) -> list[Tensor]:
            places = zip(self._plan.program.outputs[1:], results, strict=False)
            begun = self._passed()
            these = tuple(with_rows(x, t) for x, t in zip(given, inputs, strict=True))  # a recording's inputs stay
            found = self._executed(these, results=dict(places))
            self._messages = self._passed() - begun
            return [t for t in found if t is not None]

        def record(run: Callable[[Sequence[Tensor]], list[Tensor]], kept: Sequence[Tensor]) -> Recording:
            return recorder.record(self, run, inputs[:1], planned, self._carried, kept)

        try:
            if self._keeps:
                caches = [*zip(self._plan.program.inputs[1:], given[1:], strict=True)]
                return RecordedStep(run, record, [[room_for_next(self._plan, *c) for c in caches] for _ in range(2)])
            after = recorder.step_taking(self._leaves) if self._begins else None
            if after is not None:
                return RecordedFirstStep(run, record, after)
            return recorder.record(self, run, inputs, planned, self._carried + self._caches)
        except RuntimeError as error:
            _log.info("not recorded as a CUDA graph: %s", str(error).splitlines()[0])
            return None
        finally:  # none is on its way before a replay
            if self._shared is not None:
                self._shared.peers.pass_on(before - self._passed())
