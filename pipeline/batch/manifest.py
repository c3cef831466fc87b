"""The manifest of a folder (manifest.jsonl): a line for each output, from which a data loader can be built.

Lines are added as outputs are completed, each with a checksum of itself. A line that a kill has torn is removed by the
next run, and an output that is complete but has no line gets one. Of an output that was made again the last line
counts; the others go when a run ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tvae.pipeline.batch.manifest_lines import (
    State,
    facts_on_disk,
    line_for,
    lines_in,
    manifest_name,
    said_state,
    state_of,
    write_anew,
)
from tvae.pipeline.batch.seen import Seen
from tvae.pipeline.batch.shards import Shard
from tvae.pipeline.errors import OutputError, UsageError
from tvae.pipeline.files.atomic import discard, write_error
from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.files.lock import OutputHeld, one_writer
from tvae.pipeline.files.own_file import check_own
from tvae.pipeline.files.written import WrittenFile
from tvae.pipeline.jobs.events import Made
from tvae.pipeline.jobs.facts import made_of
from tvae.pipeline.jobs.passing import may_pass

__all__ = ["Manifest", "alone"]

_SHORT = 16
"""Bytes of a digest that is told from those of a million others."""
_PATIENCE = 1.0
"""Seconds in which those who only ask have let go."""


def alone(manifest: Path) -> Path:
    """What a run holds that has the manifest for itself, so that others know what they would wait for."""
    return manifest.with_name(f"{manifest.name}.alone")


class Manifest:
    """The manifest of a folder while a run adds to it; leaving it puts what is there on the disk.

    Raises UsageError where another run has it, and for a file of its name that is none; OutputError where it cannot be
    written, at the end where that is for want of room.
    """

    _waits = True
    """Are lines kept that there is no room for?"""

    def __init__(self, folder: Path, shard: Shard | None = None) -> None:
        self._folder, self._path = folder, folder / manifest_name(shard)
        self._held = ExitStack()
        self._known: dict[str, bytes] = {}
        """Of each output that had a line when this run came: what ``_digest_of`` makes of it."""
        self._written = Seen()
        """Names that this run has added. One that only seems to have been costs a look through the file at the end."""
        self._start = os.path.join(folder, "")
        self._file: Any = None
        self._lines: list[bytes] = []
        self._late: OSError | None = None
        """Why what is in `_lines` could not be written."""
        self._grouped = False
        """Are lines kept until more have come?"""
        self._again = False
        """Is there a line that does not count?"""

    def __enter__(self) -> Self:
        try:
            self._held.enter_context(one_writer(self._path, 0))
            self._held.enter_context(one_writer(alone(self._path), _PATIENCE))
        except OutputHeld:
            self._held.close()
            raise UsageError(
                f"another run writes {self._path}; wait for it, or start all of them with --shard or with --claim"
            ) from None
        try:
            self._bring()
            check_own(self._path, "manifest")
            self._read()
            self._tidy()
        except OSError as error:
            self._held.close()
            raise write_error(self._path, error) from error
        except BaseException:
            self._held.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._write()
            if self._lines and self._late is not None:
                raise self._late
            if self._file is not None:
                os.fsync(self._file.fileno())
            self._tidy()
            self._send()
        except OutputError:
            if error is None:
                raise
        except OSError as failure:
            if error is None:
                raise write_error(self._path, failure) from failure
        finally:
            if self._file is not None:
                empty = os.fstat(self._file.fileno()).st_size == 0
                self._file.close()
                if empty:  # the disk is full; without a line it would not be ours
                    discard(self._path)
            self._held.close()

    def done(self, output: Path, facts: Mapping[str, Any], file: WrittenFile | None = None) -> None:
        """Add a line for a complete output. facts: what to say of it besides its name, size and checksum. file: what
        its maker knows of it; without it, it is read."""
        name = self._name(output)
        self._lines.append(line_for(name, {**facts_on_disk(output, file), **facts}))
        self._add(name)
        if not self._grouped:
            self._write()

    @contextmanager
    def together(self) -> Iterator[None]:
        """The lines of what is done meanwhile are written at its end, at once; those that an exception ends, when the
        manifest is left."""
        self._grouped = True
        try:
            yield
        finally:
            self._grouped = False
        self._write()

    def _write(self) -> None:
        """What was added. What there is no room for now stays for the next time: items are tried again, too."""
        rest, self._lines = b"".join(self._lines), []
        try:
            while rest:
                if self._file is None:  # a run that makes nothing leaves none
                    check_own(self._path, "manifest")
                    self._file = self._path.open("ab", buffering=0)
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            if not (self._waits and may_pass(error)):
                raise write_error(self._path, error) from error
            self._lines, self._late = [rest], error

    @property
    def had_lines(self) -> bool:
        """Before this run added any."""
        return bool(self._known)

    def knows(self, output: Path) -> bool:
        """Was there a line for the output as it is now, by its size and time, before this run added any?"""
        known = self._known.get(self._name(output))
        return known is not None and known[:_SHORT] == self._now(output)

    def says(self, output: Path, fingerprint: Callable[[], str]) -> bool:
        """Does that line say that this is its fingerprint? It is asked for where there is such a line."""
        known = self._known.get(self._name(output), b"")
        return len(known) > _SHORT and known[:_SHORT] == self._now(output) and known[_SHORT:] == _digest(fingerprint())

    def made(self, output: Path) -> Made:
        """What is to be said of an output, which is read for it. `OSError` and InputError where it cannot be."""
        return made_of(output)

    def _bring(self) -> None:
        """Where the manifest is kept elsewhere, too: what is there, before anything is read."""

    def _send(self) -> None:
        """Where it is kept elsewhere, too: what is here, when all is written."""

    def _state(self, output: Path) -> State:
        """As it is now. `OSError` where it is not there."""
        return state_of(output)

    def _now(self, output: Path) -> bytes:
        """Digest of the state that an output has; none where it is not there."""
        try:
            return _digest(self._state(output))
        except OSError:
            return b""

    def _name(self, output: Path) -> str:
        text = str(output)
        if text.startswith(self._start):
            return text[len(self._start) :].replace(os.sep, "/")
        return output.relative_to(self._folder).as_posix()

    def _note(self, name: str, said: Mapping[str, Any]) -> None:
        self._again |= name in self._known
        self._known[name] = _digest_of(said)

    def _add(self, name: str) -> None:
        """Note a line of this run's, of which it will not ask."""
        again = self._written.add(name)
        self._again |= self._known.pop(name, None) is not None or again

    def _read(self) -> None:
        if not os.path.lexists(self._path):
            return
        with open_regular(self._path) as file:
            for _, line in lines_in(file):
                if line is None:
                    self._again = True
                else:
                    self._note(line["output"], line)

    def _tidy(self) -> None:
        if self._again:
            write_anew(self._path)
            if self._path.stat().st_size == 0:  # without a line it would not be ours
                discard(self._path)
            self._again = False


def _digest_of(said: Mapping[str, Any]) -> bytes:
    """A line, as far as it is asked: state, then fingerprint."""
    fingerprint = said.get("fingerprint")
    return _digest(said_state(said)) + (_digest(fingerprint) if isinstance(fingerprint, str) else b"")


def _digest(what: State | str) -> bytes:
    return blake2b(repr(what).encode(), digest_size=_SHORT).digest()
