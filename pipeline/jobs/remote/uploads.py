"""Results that go elsewhere: written to a folder of this machine, sent when they are complete, and dropped.

That folder has a name made from the output's URL, in tvae's cache or below ``--spill``. What an interrupted run has
left there, parts of a clip above all, is continued by the next run of the same command, as in an output folder.
"""

from __future__ import annotations

import os
import posixpath
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from tvae.pipeline import latents
from tvae.pipeline.errors import InputError, OutputError, UsageError
from tvae.pipeline.files.atomic import discard, write_error
from tvae.pipeline.files.staging import scratch_folder
from tvae.pipeline.files.written import WrittenFile
from tvae.pipeline.jobs.events import Made
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.remote.fetching import fetch_one, local_copy
from tvae.pipeline.jobs.remote.places import check_root, check_written, own_folder
from tvae.pipeline.jobs.remote.stand_ins import stand_in
from tvae.pipeline.jobs.remote.there import There
from tvae.pipeline.latents.index import INDEX_NAME
from tvae.pipeline.latents.tensor_file import is_ours
from tvae.pipeline.stores import Place, RemoteFile, RemotePath, Store, StoreError, parse_url

__all__ = ["Uploads", "uploading"]

_IS_INPUT = "is an input of this run; choose another output with -o"


@contextmanager
def uploading(job: Job) -> Iterator[Uploads]:
    """For a job whose output is a URL. Raises UsageError where nothing can be written to it."""
    assert job.output is not None
    place = parse_url(job.output)
    check_written(place)
    store = Store(place.kind)
    check_root(store, place)
    with ExitStack() as stack:
        folder = stack.enter_context(own_folder(place.shown, job.spill))
        uploads = Uploads(job, store, place, folder)
        stack.callback(uploads.tidy)
        yield uploads


class Uploads:
    """The results of a run. folder: theirs on this machine. Any thread may ask, look and send."""

    def __init__(self, job: Job, store: Store, place: Place, folder: Path) -> None:
        self.store, self.place = store, place
        self.job, self._folder = job, folder
        """The run's, as it was asked for: its output is the URL."""
        root = place.kind.root(place.key)
        self._above = root if place.key == root else place.key.rpartition("/")[0]
        name = place.key.removeprefix(self._above).strip("/")
        self.output = f"{folder}{os.sep}{name}{os.sep if name == '' or (job.output or '').endswith('/') else ''}"
        """Of the job, in the place of the URL."""
        self._there = There()
        self._inputs: frozenset[str] = frozenset()
        self._strange: set[str] = set()

    def begin(self, items: Iterable[Item]) -> None:
        """Looks once what is there. items: of the run; no result may replace an input. Raises UsageError where one
        would, and where it may not be looked."""
        self._inputs = frozenset(str(item.source) for item in items)
        for item in items:
            for kind in item.kinds if item.problem is None else ():
                with suppress(InputError):  # a name that suits another kind
                    if self.is_input(output := item.output(kind)):
                        raise UsageError(f"the output {self.path(output)} {_IS_INPUT}")
        if self.job.existing == "overwrite":
            return
        try:
            if (found := self.store.look(self.place.key)) is not None and not found.is_folder:
                files = [found]
            else:
                files = self.store.inside(self.place.key, recursive=True)
        except StoreError as error:
            raise UsageError(f"{error}; --overwrite does without looking for what is done") from error
        self._there.put("", files)

    def path(self, output: Path) -> RemotePath:
        """Where a result goes."""
        return Place(self.place.kind, self._key(output)).path

    def told(self, text: str) -> str:
        """A message, with the URLs of results in the place of their files."""
        return text.replace(f"{self._folder}{os.sep}", f"{Place(self.place.kind, self._above).shown}/")

    def holds(self, output: Path) -> bool:
        """Whether this is the path of a result, on this machine."""
        return output.is_relative_to(self._folder)

    def stored(self, output: Path) -> RemoteFile | None:
        """What was in the store under a result's name when the run began, or was sent since; of a clip's latents, their
        index. None: nothing. output: on this machine, or its URL."""
        return self._there.result(self._key(output))

    def as_stored(self, output: Path, made: Made) -> Made:
        """What a manifest says of a result, with its size, time and version in the store, where it is."""
        file = self.stored(output)
        assert file is not None, "asked of what was sent, or was there"
        written = WrittenFile(file.size, file.mtime_ns, made.file.sha256)
        return replace(made, file=written, said={**made.said, "version": file.version})

    def away(self, item: Item) -> Item:
        """As another process is told of it, which has a folder of its own for results: with its folder's URL."""
        return replace(item, folder=self.path(item.folder))

    def here(self, item: Item) -> Item:
        """The same of this process: what ``away`` made of it in another."""
        return replace(item, folder=self.local(item.folder))

    def local(self, path: Path) -> Path:
        """Of a URL of results: where they are on this machine until they are sent."""
        return self._folder / posixpath.relpath(self._key(path), self._above)

    @contextmanager
    def reading(self, output: Path) -> Iterator[Path]:
        """A copy of a result that is in the store: of an image or a film whole, of a clip's latents the index, the
        first part and the sizes of the others. output: as of ``stored``. Raises InputError where it cannot be read."""
        key = self._key(output)
        if self.stored(output) is None:  # another process has sent it
            self._look_again(output)
        file = self._there.file(key)
        if file is not None:
            with local_copy(file, self.job.spill, waits=False) as copy:
                yield copy
            return
        with scratch_folder(self.job.spill) as folder:
            parts = self._there.parts(key)
            stand_in(parts, found := folder / output.name)
            _fetch_first(parts, found)
            yield found

    def is_input(self, output: Path) -> bool:
        """Whether the URL of a result is that of an input."""
        return str(self.path(output)) in self._inputs

    @contextmanager
    def standing(self, output: Path) -> Iterator[Path]:
        """What is there of a result, to be asked what it is: a file that begins, and for pictures ends, as the one in
        the store does. What is not there leads to ``output``, which an interrupted run may have left."""
        key = self._key(output)
        file = self._there.file(key)
        files = self._there.parts(key) if file is None else [file]
        is_clip = output.suffix == latents.VIDEO_SUFFIX
        if not files or (is_clip and self._there.result(key) is None):
            yield output
            return
        with scratch_folder(self.job.spill) as folder:
            found = folder / output.name
            stand_in(files, found)
            if output.suffix == latents.IMAGE_SUFFIX and not is_ours(found):
                self._strange.add(key)
            yield found

    def send(self, output: Path) -> None:
        """A complete result: a file, or the folder of a clip's latents, whose index goes last. OutputError where the
        store does not take it: then an image is dropped, and a clip stays for the next run."""
        key = self._key(output)
        try:
            self._check(key, output)
            if output.is_dir():
                self._send_folder(output, key)
            else:
                self.store.send(output, key)
            if self.job.recorded:  # a manifest says what is there now
                self._note(key, is_clip=output.is_dir())
        except StoreError as error:
            raise OutputError(str(error)) from error
        finally:
            if not output.is_dir():
                discard(output)
        shutil.rmtree(output, ignore_errors=True)

    def drop(self, output: Path) -> None:
        """What an interrupted run has left of a result that is there by now."""
        if output.is_dir():
            shutil.rmtree(output, ignore_errors=True)
        else:
            discard(output)

    def is_there(self, output: Path) -> bool:
        """Whether a result of this name is in the store."""
        return self._there.result(self._key(output)) is not None

    def tidy(self) -> None:
        """Removes folders that hold nothing."""
        for folder, _, _ in sorted(os.walk(self._folder), reverse=True):
            try:
                os.rmdir(folder)
            except OSError:  # it holds what the next run continues
                continue

    def _check(self, key: str, output: Path) -> None:
        if self.is_input(output):
            raise OutputError(f"the output {self.path(output)} {_IS_INPUT}")
        if key in self._strange:
            raise OutputError(
                f"{self.path(output)} exists and is not latents of tvae; move it away, or pass --overwrite"
            )

    def _send_folder(self, folder: Path, key: str) -> None:
        """The old clip ends with its index, before a part of the new one is there."""
        old = self._there.parts(key)
        names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        index = f"{key}/{INDEX_NAME}"
        if any(file.place.key == index for file in old):
            self.store.remove([index])
        for name in names:
            if name != INDEX_NAME:
                self.store.send(folder / name, f"{key}/{name}")
        self.store.remove(file.place.key for file in old if file.name not in names and latents.is_part_name(file.name))
        self.store.send(folder / INDEX_NAME, index)

    def _look_again(self, output: Path) -> None:
        try:
            self._note(self._key(output), is_clip=output.suffix == latents.VIDEO_SUFFIX)
        except StoreError as error:
            raise InputError(str(error)) from error
        if self.stored(output) is None:
            raise InputError(f"{self.path(output)} has gone; run again")

    def _note(self, key: str, *, is_clip: bool) -> None:
        """What is in the store now under a result's name."""
        files = self.store.inside(key) if is_clip else [self.store.look(key)]
        self._there.put(key, [file for file in files if file is not None and not file.is_folder])

    def _key(self, output: Path) -> str:
        if isinstance(output, RemotePath):
            return parse_url(str(output)).key
        return f"{self._above}/{output.relative_to(self._folder).as_posix()}"


def _fetch_first(parts: Sequence[RemoteFile], clip: Path) -> None:
    """The first part of a clip's latents, which says what they are."""
    first = min((file for file in parts if latents.is_part_name(file.name)), key=lambda file: file.name, default=None)
    if first is None:
        return
    try:
        (clip / first.name).unlink()
        fetch_one(first, clip / first.name)
    except StoreError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise write_error(clip, error) from error
