"""A manifest that several runs add to at the same time: its lock is held for a line, and not for a run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tvae.pipeline.batch.manifest import Manifest, alone
from tvae.pipeline.batch.manifest_lines import facts_on_disk, line_for, lines_in
from tvae.pipeline.batch.shards import Shard
from tvae.pipeline.errors import OutputError, UsageError
from tvae.pipeline.files.atomic import discard, write_error
from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.files.flushing import flush_file
from tvae.pipeline.files.lock import OutputHeld, one_writer
from tvae.pipeline.files.own_file import check_own
from tvae.pipeline.files.written import WrittenFile
from tvae.pipeline.jobs.passing import may_pass

__all__ = ["SharedManifest"]

_SOON, _PATIENCE = 2.0, 600.0
"""Seconds to wait for others that share it: each holds it for a line, or, now and then, to read or to write all of a
million. One that has died holds nothing."""


class SharedManifest(Manifest):
    """See ``Manifest``. Before a run adds a line it reads what the others have written since, and cuts off half a line
    that one of them left when it was killed.

    Raises UsageError for a file of its name that is none, and while another run has it for itself; OutputError where it
    cannot be written.
    """

    def __init__(self, folder: Path, shard: Shard | None = None) -> None:
        super().__init__(folder, shard)
        self._end, self._last = 0, b""
        """Of what was read: where it ends, and its last line, by which a file that was written anew is told."""
        self._waiting: list[tuple[Path, Mapping[str, Any]]] = []
        """Outputs without a line, and what is to be said of them: there was no room."""

    def __enter__(self) -> Self:
        with self._turn():
            return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._waiting or (error is None and os.path.lexists(self._path)):
                with self._turn():
                    self._add_waiting()
                    if self._waiting and self._late is not None:
                        raise self._late
                    if error is None:
                        self._tidy()
                        flush_file(self._path)
        except (OutputError, UsageError):
            if error is None:
                raise

    def done(self, output: Path, facts: Mapping[str, Any], file: WrittenFile | None = None) -> None:
        """See ``Manifest``. Adds nothing where another run has told of the same output. It waits for no others: who
        takes the item next looks for its line. One that a full disk has no room for is added later."""
        self._waiting.append((output, {**facts_on_disk(output, file), **facts}))
        try:
            with self._turn():
                self._add_waiting()
        except BaseException:
            del self._waiting[-1:]
            raise

    def _add_waiting(self) -> None:
        while self._waiting:
            output, said = self._waiting[0]
            if not super().knows(output):
                name = self._name(output)
                try:
                    self._append(line_for(name, said))
                except OSError as error:
                    if not may_pass(error):
                        raise
                    self._late = error
                    return
                self._note(name, said)
            del self._waiting[0]

    def _append(self, line: bytes) -> None:
        """All of it, or nothing."""
        try:
            with self._path.open("ab", buffering=0) as end:
                rest = line
                while rest:
                    rest = rest[end.write(rest) :]
        except BaseException:
            if not self._end:  # without a line it would not be ours
                discard(self._path)
            with suppress(OSError):
                os.truncate(self._path, self._end)
            raise
        self._took(line)

    def knows(self, output: Path) -> bool:
        """See ``Manifest``; by any of the runs, this one among them."""
        if super().knows(output):
            return True
        with self._turn():
            return super().knows(output)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """No other run adds to it meanwhile, and all that it says is known."""
        try:
            with self._held_by_this():
                if self._end == 0:
                    check_own(self._path, "manifest")
                self._read()
                yield
        except OSError as error:
            raise write_error(self._path, error) from error

    @contextmanager
    def _held_by_this(self) -> Iterator[None]:
        with ExitStack() as held:
            try:
                held.enter_context(one_writer(self._path, _SOON))
            except OutputHeld:
                self._check_shared()
                try:
                    held.enter_context(one_writer(self._path, _PATIENCE))
                except OutputHeld as late:
                    raise OutputError(f"another run has held {self._path} for {_PATIENCE:.0f} s; end it") from late
            yield

    def _check_shared(self) -> None:
        try:
            with one_writer(alone(self._path), 0):
                pass
        except OutputHeld:
            raise UsageError(
                f"a run without --claim writes {self._path}; wait for it, or start all of them with --claim"
            ) from None

    def _read(self) -> None:
        try:
            with open_regular(self._path) as file:
                file.seek(self._end - len(self._last))
                if file.read(len(self._last)) != self._last:
                    self._forget()
                    file.seek(0)
                for data, line in lines_in(file):
                    if not data.endswith(b"\n") and not file.peek(1):
                        break
                    self._took(data)
                    if line is None:
                        self._again = True
                    else:
                        self._note(line["output"], line)
                whole = self._end == os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            self._forget()
            return
        if not whole:
            os.truncate(self._path, self._end)

    def _took(self, data: bytes) -> None:
        self._end += len(data)
        self._last = data

    def _forget(self) -> None:
        self._end, self._last = 0, b""
        self._known, self._again = {}, False
