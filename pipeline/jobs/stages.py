"""One item through its stages: what a run with threads and one without have in common."""

from __future__ import annotations

from collections import deque

from tvae.pipeline.errors import InputError, UnsupportedOp
from tvae.pipeline.files.bell import Bell
from tvae.pipeline.files.lock import OutputHeld
from tvae.pipeline.files.pulse import beat
from tvae.pipeline.jobs.beside import write_beside
from tvae.pipeline.jobs.clips import tell_held, through
from tvae.pipeline.jobs.compute import enough_memory
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import Event, ItemStarted, Progress
from tvae.pipeline.jobs.outcome import End, Outcome
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.pictures import Hold, Operation, Picture, Results, moment
from tvae.pipeline.jobs.supply import PENDING, Items

__all__ = ["clip_outcome", "looked_up", "one_by_one", "tell_progress", "tell_started"]


def one_by_one(items: Items, operation: Operation, context: Context, end: End, more: Bell | None = None) -> None:
    """Every item from end to end in the caller's thread. ``end`` and ``more``: see ``run_items``."""
    source, later = iter(items), deque[Item]()
    while True:
        item = next(source, None)
        if item is None or item is PENDING:
            if later:
                item = later.popleft()
            elif item is None:
                return
            else:
                (more or Bell()).wait()
                continue
        try:
            found = looked_up(operation, item, context, lambda _size: None)
            if isinstance(found, Picture):
                tell_started(found, context)
                with enough_memory(context.model_for(found.vae)) as model:
                    began = moment(model.device)
                    results = Results(operation.compute(model, [found.values]), model.device, began)
                tell_progress(found, context)
                outcome: Outcome | None = found.finish(found, results.of(0))
            else:
                outcome = clip_outcome(operation, item, context) if found is None else found
        except UnsupportedOp:
            raise
        except Exception as error:  # the caller knows whose failure it is
            outcome = error
        if outcome is None:
            later.append(item)
        else:
            end(item, outcome)


def clip_outcome(operation: Operation, item: Item, context: Context) -> Outcome | None:
    """Does a clip in this thread; None where another run is writing its output: then it is to be tried again after the
    others."""
    try:
        return through(operation.clip(item))
    except UnsupportedOp:
        raise
    except OutputHeld as held:
        tell_held(item, held, context)
        beat()  # to wait is what it is to do
        return None
    except Exception as error:  # the caller knows whose failure it is
        return error


def looked_up(operation: Operation, item: Item, context: Context, hold: Hold) -> Event | Picture | None:
    """See ``Operation.look_up``; InputError, too, for an item that is known to be no use."""
    if item.problem is not None:
        raise InputError(item.problem)
    if item.below is None:  # shards have texts in them
        write_beside(item, context.job.existing, context.uploads)
    return operation.look_up(item, hold)


def tell_started(picture: Picture, context: Context) -> None:
    """A picture is about to be computed."""
    context.emit(ItemStarted(picture.item.source, picture.item.index, picture.output, "image", 1))


def tell_progress(picture: Picture, context: Context) -> None:
    """A picture has been computed, or will have been before its results are there."""
    if picture.shows_progress:
        context.emit(Progress(picture.item.source, picture.item.index, 1, 1))
