"""The calls that a run gives its device: the next ones are given while the one before them still runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tvae.pipeline.errors import UnsupportedOp
from tvae.pipeline.jobs.compute import enough_memory
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.pictures import Operation, Picture, Results, moment

__all__ = ["Calls"]

AHEAD, FURTHER = 2, 6
"""That a device has before it: the one that runs, and the next; and of small calls, whose memory is nothing. A size
that is new, and then recorded, takes the host as long as the device takes for five."""
SMALL_PIXELS = 1 << 22
"""Of a small call."""


class Calls:
    """Of one run, from the caller's thread."""

    def __init__(self, operation: Operation, context: Context) -> None:
        self._operation, self._context = operation, context
        self._calls: deque[Results] = deque()

    def make(self, pictures: Sequence[Picture]) -> Results | Exception:
        """One call for all of them, as soon as the device has few enough before it. The error is given back: while it
        is handled, what it was raised among keeps its memory."""
        self.wait(self._ahead(pictures) - 1)
        try:
            with enough_memory(self._context.model_for(pictures[0].vae)) as model:
                began = moment(model.device)
                tensors = self._operation.compute(model, [picture.values for picture in pictures])
                found = Results(tensors, model.device, began)
        except UnsupportedOp:
            raise
        except Exception as error:  # the caller knows whose failure it is
            if len(pictures) > 1:
                error.__traceback__ = error.__cause__ = error.__context__ = None
            return error
        self._calls.append(found)
        if not found.on_its_way:  # a CPU is done with it
            self.wait()
        return found

    def _ahead(self, pictures: Sequence[Picture]) -> int:
        small = self._context.job.vram is None and sum(picture.pixels for picture in pictures) <= SMALL_PIXELS
        return FURTHER if small else AHEAD

    def wait(self, most: int = 0) -> None:
        """Until the device has no more calls than so many before it."""
        while len(self._calls) > most:
            call = self._calls.popleft()
            call.wait()
            self._context.busy.add("compute", call.seconds)
