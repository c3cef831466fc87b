"""From samples as they get done, in any order, to shards that hold them in the order of the inputs.

Samples wait on the disk, in files of the hidden folder beside the shards, until all before them are done or have
failed. An item has ended when the shard of its last sample has its name. Shards are written by a thread of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from tvae.pipeline.caches.shards import Sample
from tvae.pipeline.caches.shards.record import FOLDER, SampleRecord, ShardRecord, unfinished
from tvae.pipeline.errors import InputError, TvaeError
from tvae.pipeline.files.atomic import discard, replacing, temporary_path, write_error
from tvae.pipeline.jobs.cache_plan import CachePlan
from tvae.pipeline.jobs.events import ItemDone
from tvae.pipeline.jobs.outcome import End, Finished, Outcome
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.shards.facts import shard_facts
from tvae.pipeline.jobs.shards.standing import Standing
from tvae.pipeline.jobs.shards.write import Stored, write_shard

__all__ = ["Packing"]

_AT_ONCE = 2
"""Shards that are being written; more would fill the disk with samples that wait."""


@dataclass
class _Done:
    """An item whose samples wait. left: those that are in no shard yet."""

    item: Item
    outcome: Finished | ItemDone
    left: int
    error: Exception | None = None
    file: str | None = None


@dataclass
class _Open:
    """The shard that is being filled."""

    samples: list[Stored] = field(default_factory=list)
    owners: list[_Done] = field(default_factory=list)
    payload: int = 0


@dataclass
class _Writing:
    file: str
    number: int
    shard: _Open
    future: Future[ShardRecord]


class Packing:
    """Use it as a context. Leaving it by an error keeps the shards that are complete, and nothing else.

    end: is told how items end, in the caller's thread.
    """

    def __init__(self, plan: CachePlan, standing: Standing, items: Sequence[Item], end: End) -> None:
        self._root, self._standing, self._end = plan.root, standing, end
        self._facts = shard_facts(plan)
        self._settings = self._facts.settings
        self._waiting_for = deque(item.index for item in items)
        self._staged: dict[int, list[Stored]] = {}
        self._ended: dict[int, tuple[_Done, list[Stored]] | None] = {}
        self._open = _Open()
        self._writing: deque[_Writing] = deque()
        self._numbers: set[int] = set()
        self._was_unfinished = False
        """Was it so before this run?"""
        self._thread = ThreadPoolExecutor(1, "tvae-shards")

    def __enter__(self) -> Packing:
        marker = unfinished(self._root)
        try:
            marker.parent.mkdir(parents=True, exist_ok=True)
            self._was_unfinished = marker.exists()
            marker.touch()
            self._standing.tidy()
        except OSError as error:
            raise write_error(self._root, error) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._thread.shutdown(cancel_futures=True)
            for one in self._left():
                discard(one.file)
            refused = kind is not None and issubclass(kind, TvaeError)
            if refused and not (self._was_unfinished or self._standing.shards or self._writing):
                discard(unfinished(self._root))  # nothing was begun

    def stage(self, item: Item, sample: Sample, record: SampleRecord) -> None:
        """Keep a sample of an item. In any thread. record: its own but for its bytes. InputError, OutputError."""
        try:
            content = self._standing.form.sample(sample)
        except ValueError as error:
            raise InputError(str(error)) from None
        if len(content) > self._standing.form.most:
            raise InputError(f"its latents are {len(content)} bytes, too many for a sample of {self._facts.trainer}")
        temporary = temporary_path(self._root / FOLDER / "sample")
        try:
            temporary.write_bytes(content)
        except OSError as error:
            discard(temporary)
            raise write_error(self._root, error) from error
        stored = Stored(temporary, 0, replace(record, bytes=len(content)))
        self._staged.setdefault(item.index, []).append(stored)

    def ending(self, item: Item, outcome: Outcome) -> None:
        """An item's samples are all staged, or there will be none. In the caller's thread."""
        staged = self._staged.pop(item.index, [])
        if isinstance(outcome, (Finished, ItemDone)):
            pieces = len(staged) + len(self._standing.starts(item))
            samples = [one._replace(record=replace(one.record, pieces=pieces)) for one in staged]
            self._ended[item.index] = _Done(item, outcome, len(samples)), samples
        else:
            for one in staged:
                discard(one.file)
            self._ended[item.index] = None
            self._end(item, outcome)
        while self._waiting_for and self._waiting_for[0] in self._ended:
            self._take(self._ended.pop(self._waiting_for.popleft()))
        self._collect(_AT_ONCE)

    def _take(self, ended: tuple[_Done, list[Stored]] | None) -> None:
        """The next item in order."""
        if ended is None:
            return
        owner, samples = ended
        if not samples:  # its pieces stand already, but they are fewer than were recorded
            self._tell(owner)
        form = self._standing.form
        for one in samples:
            payload = self._open.payload + one.record.bytes
            if (
                self._open.samples
                and form.size(len(self._open.samples) + 1, payload, self._settings) > self._facts.limit
            ):
                self._close()
            self._open.samples.append(one)
            self._open.owners.append(owner)
            self._open.payload += one.record.bytes

    def _close(self) -> None:
        """The open shard is full."""
        number = self._standing.free_number(self._numbers)
        file = self._standing.form.file(number)
        facts = replace(self._facts, file=replace(self._facts.file, file=file))
        future = self._thread.submit(write_shard, self._root, self._standing.form, facts, self._open.samples)
        self._numbers.add(number)
        self._writing.append(_Writing(file, number, self._open, future))
        self._open = _Open()

    def _collect(self, most: int) -> None:
        """Tell the ends of items whose shards are complete; wait until no more than so many are being written."""
        while self._writing and (len(self._writing) > most or self._writing[0].future.done()):
            one = self._writing.popleft()
            failed: Exception | None = None
            try:
                self._standing.add(one.future.result())
                self._numbers.discard(one.number)
            except OSError as error:  # its number stays free for the run that makes it again
                failed = write_error(self._root / one.file, error)
            for sample in one.shard.samples:
                discard(sample.file)
            for owner in one.shard.owners:
                owner.left -= 1
                owner.error = owner.error or failed
                owner.file = owner.file or one.file
                if not owner.left:
                    self._tell(owner)

    def _tell(self, owner: _Done) -> None:
        if owner.error is not None:
            return self._end(owner.item, owner.error)
        output = self._root / (owner.file or "")
        if isinstance(owner.outcome, Finished):
            return self._end(owner.item, replace(owner.outcome, done=replace(owner.outcome.done, output=output)))
        return self._end(owner.item, replace(owner.outcome, output=output))

    def _finish(self) -> None:
        if self._open.samples:
            self._close()
        self._collect(0)
        try:
            self._write_index()
            unfinished(self._root).unlink(missing_ok=True)
        except OSError as error:
            raise write_error(self._root, error) from error

    def _write_index(self) -> None:
        """Of all shards; none where there are none, since no record would say that it is tvae's. `OSError`."""
        form = self._standing.form
        if form.index is None or form.index_name is None or not self._standing.shards:
            return
        listed = [self._standing.shards[file] for file in sorted(self._standing.shards)]
        content = form.index([(one.file, one.size, one.samples, one.settings) for one in listed])
        index = self._root / form.index_name
        if not index.is_file() or index.read_bytes() != content:
            with replacing(index) as temporary:
                temporary.write_bytes(content)

    def _left(self) -> Iterator[Stored]:
        yield from self._open.samples
        for writing in self._writing:
            yield from writing.shard.samples
        for ended in self._ended.values():
            yield from ended[1] if ended is not None else ()
        for staged in self._staged.values():
            yield from staged
