"""An operation whose results are sent to a store when they are complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from tvae.pipeline.files.atomic import write_error
from tvae.pipeline.jobs.clips import ClipRun
from tvae.pipeline.jobs.events import Event, ItemDone, ItemSkipped
from tvae.pipeline.jobs.existing import is_there
from tvae.pipeline.jobs.facts import made_of
from tvae.pipeline.jobs.outcome import Finished
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.pictures import Finish, Hold, Operation, Picture
from tvae.pipeline.jobs.remote.uploads import Uploads

if TYPE_CHECKING:
    from tvae.pipeline.session.model import Model

__all__ = ["Uploading"]


class Uploading:
    """See ``Operation``. An item is done when its result is in the store."""

    def __init__(self, operation: Operation, uploads: Uploads) -> None:
        self._operation, self._uploads = operation, uploads

    def look_up(self, item: Item, hold: Hold) -> Event | Picture | None:
        found = self._operation.look_up(item, hold)
        if isinstance(found, Picture):
            found.finish = self._sent(found.finish)
        elif isinstance(found, ItemSkipped):
            self._settle(found)
        return found

    def compute(self, model: Model, values: Sequence[Tensor]) -> list[Tensor]:
        return self._operation.compute(model, values)

    def expect(self, model: Model, values: Sequence[Tensor]) -> None:
        self._operation.expect(model, values)

    def clip(self, item: Item) -> ClipRun:
        last = yield from self._operation.clip(item)
        if isinstance(last, Finished):
            return replace(last, done=self._send(last.done))
        if isinstance(last, ItemSkipped) and is_there(last.output):
            self._uploads.send(last.output)
        return last

    def _send(self, done: ItemDone) -> ItemDone:
        """The event has what a manifest says of the output, which was asked while it was on this machine."""
        output, made = done.output, done.made
        if self._uploads.job.recorded and made is None:
            try:
                made = made_of(output)
            except OSError as error:
                raise write_error(output, error) from error
        self._uploads.send(output)
        return done if made is None else replace(done, made=self._uploads.as_stored(output, made))

    def _sent(self, finish: Finish) -> Finish:
        def finish_and_send(picture: Picture, results: list[Tensor]) -> Finished:
            finished = finish(picture, results)
            return replace(finished, done=self._send(finished.done))

        return finish_and_send

    def _settle(self, skipped: ItemSkipped) -> None:
        """What an interrupted run had made and not sent is sent; what is in the store needs nothing here."""
        if self._uploads.is_there(skipped.output):
            self._uploads.drop(skipped.output)
        elif is_there(skipped.output):
            self._uploads.send(skipped.output)
