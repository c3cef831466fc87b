"""The manifest of a folder (manifest.jsonl): a line for each output, from which a data loader can be built.

Lines are added as outputs are completed, each with a checksum of itself. A line that a kill has torn is removed by the
next run, and an output that is complete but has no line gets one. Of an output that was made again the last line
counts; the others go when a run ends.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tvae.pipeline.batch.manifest_lines import (
    State,
    check_own,
    facts_on_disk,
    line_for,
    lines_in,
    manifest_name,
    said_state,
    state_of,
    write_anew,
)
from tvae.pipeline.batch.shards import Shard
from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.atomic import write_error
from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.files.lock import OutputHeld, one_writer

__all__ = ["Manifest", "alone"]

_UNKNOWN: tuple[State | None, str | None] = None, None
_PATIENCE = 1.0
"""Seconds in which those who only ask have let go."""


def alone(manifest: Path) -> Path:
    """What a run holds that has the manifest for itself, so that others know what they would wait for."""
    return manifest.with_name(f"{manifest.name}.alone")


class Manifest:
    """The manifest of a folder while a run adds to it; leaving it puts what is there on the disk.

    Raises UsageError where another run has it, and for a file of its name that is none; OutputError where it cannot be
    written.
    """

    def __init__(self, folder: Path, shard: Shard | None = None) -> None:
        self._folder, self._path = folder, folder / manifest_name(shard)
        self._held = ExitStack()
        self._known: dict[str, tuple[State, str | None]] = {}
        """State and fingerprint of each output that has a line. All lines of a million would fill the memory."""
        self._start = os.path.join(folder, "")
        self._file: Any = None
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
            check_own(self._path)
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
            if self._file is not None:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
            self._tidy()
        except OSError as failure:
            if error is None:
                raise write_error(self._path, failure) from failure
        finally:
            self._held.close()

    def done(self, output: Path, facts: Mapping[str, Any]) -> None:
        """Add a line for a complete output. facts: what to say of it besides its name, size and checksum."""
        name, said = self._name(output), {**facts_on_disk(output), **facts}
        self._note(name, said)
        try:
            if self._file is None:  # a run that makes nothing leaves none
                self._file = self._path.open("ab")
            self._file.write(line_for(name, said))
            self._file.flush()
        except OSError as error:
            raise write_error(self._path, error) from error

    def knows(self, output: Path) -> bool:
        """Is there a line for the output as it is now, by its size and time?"""
        state = self._state(self._name(output))
        return state is not None and state == _state_of(output)

    def fingerprint_of(self, output: Path) -> str | None:
        """What its line says; None without a line of the output as it is now, by its size and time."""
        state, fingerprint = self._known.get(self._name(output), _UNKNOWN)
        return fingerprint if fingerprint is not None and state == _state_of(output) else None

    def _name(self, output: Path) -> str:
        text = str(output)
        if text.startswith(self._start):
            return text[len(self._start) :].replace(os.sep, "/")
        return output.relative_to(self._folder).as_posix()

    def _state(self, name: str) -> State | None:
        return self._known.get(name, _UNKNOWN)[0]

    def _note(self, name: str, said: Mapping[str, Any]) -> None:
        self._again |= name in self._known
        fingerprint = said.get("fingerprint")
        self._known[name] = said_state(said), fingerprint if isinstance(fingerprint, str) else None

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
            self._again = False


def _state_of(output: Path) -> State | None:
    """None where it is not there."""
    try:
        return state_of(output)
    except OSError:
        return None
