"""The calls that a run gives its device: the next is given while the one before still runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tvae.pipeline.errors import UnsupportedOp
from tvae.pipeline.jobs.compute import enough_memory
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.pictures import Operation, Picture, Results, moment

__all__ = ["Calls"]

AHEAD = 2
"""That a device has before it: the one that runs, and the next."""


class Calls:
    """Of one run, from the caller's thread."""

    def __init__(self, operation: Operation, context: Context) -> None:
        self._operation, self._context = operation, context
        self._calls: deque[Results] = deque()

    def make(self, pictures: Sequence[Picture]) -> Results | Exception:
        """One call for all of them, as soon as the device has few enough before it. The error is given back: while it
        is handled, what it was raised among keeps its memory."""
        self.wait(AHEAD - 1)
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
        return found

    def wait(self, most: int = 0) -> None:
        """Until the device has no more calls than so many before it."""
        while len(self._calls) > most:
            call = self._calls.popleft()
            call.wait()
            self._context.busy.add("compute", call.seconds)
