"""``manifest.jsonl``: a line for each output of a folder, from which a data loader can be built.

Lines are added as outputs are completed, each with a checksum of itself. A line that a kill has torn is removed by the
next run, and an output that is complete but has no line gets one. Of an output that was made again the last line
counts; the others go when a run ends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tvae.pipeline.errors import InputError, OutputError, UsageError
from tvae.pipeline.files.atomic import replacing, write_error
from tvae.pipeline.files.checked import open_regular, parse_json
from tvae.pipeline.files.content_checksum import CHECKSUM, of_file, of_json
from tvae.pipeline.files.lock import OutputHeld, one_writer

__all__ = ["NAME", "Manifest", "read_manifest"]

NAME = "manifest.jsonl"
_BEGIN = b'{"output": '
"""Of every line."""
_MOST_LINE = 1 << 20
_INDEX = "index.json"
"""Of latents of a clip, whose checksum stands for all of their files: it holds theirs."""


def read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    """The lines by their output; those that are damaged are left out. Empty where there is no file."""
    return _read(path)[0]


class Manifest:
    """The manifest of a folder while a run adds to it; leaving it puts what is there on the disk.

    Raises UsageError where another run has it, and for a file of its name that is none; OutputError where it cannot be
    written.
    """

    def __init__(self, folder: Path, name: str = NAME) -> None:
        self._folder, self._path = folder, folder / name
        self._held = ExitStack()
        self._lines: dict[str, dict[str, Any]] = {}
        self._file: Any = None
        self._again = False
        """Is there a line that no longer counts?"""

    def __enter__(self) -> Self:
        try:
            self._held.enter_context(one_writer(self._path, 0.0))
        except OutputHeld:
            raise UsageError(
                f"another run writes {self._path}; wait for it, or give each run a part of the items with --shard"
            ) from None
        try:
            self._lines, whole = _read(self._path)
            if not whole:
                self._check_own()
                self._write_anew()
        except UsageError:
            self._held.close()
            raise
        except OSError as error:
            self._held.close()
            raise write_error(self._path, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._file is not None:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
            if self._again:
                self._write_anew()
        except OSError as failure:
            if error is None:
                raise write_error(self._path, failure) from failure
        finally:
            self._held.close()

    def done(self, output: Path, facts: Mapping[str, Any]) -> None:
        """Add a line for a complete output. facts: what to say of it besides its name, size and checksum."""
        name = self._name(output)
        line = {"output": name, **_stored(output), **facts}
        data = json.dumps(line | {CHECKSUM: of_json(line)}, ensure_ascii=True).encode() + b"\n"
        self._again |= name in self._lines
        self._lines[name] = line
        try:
            if self._file is None:  # a run that makes nothing leaves none
                self._file = self._path.open("ab")
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise write_error(self._path, error) from error

    def knows(self, output: Path) -> bool:
        """Is there a line for the output as it is now, by its size and time?"""
        line = self._lines.get(self._name(output))
        try:
            return line is not None and _quick(output) == {key: line.get(key) for key in ("bytes", "time")}
        except OSError:
            return False

    def _check_own(self) -> None:
        """UsageError for a file of this name without a line of ours, unless it is one that a kill has torn: a file of
        the user's is never written anew."""
        if self._lines:
            return
        with open_regular(self._path) as file:
            data = file.read(_MOST_LINE)
        if b"\n" in data or data[: len(_BEGIN)] != _BEGIN[: len(data)]:
            raise UsageError(f"{self._path} is not a manifest of tvae; move it, or choose another output")

    def _name(self, output: Path) -> str:
        return output.relative_to(self._folder).as_posix()

    def _write_anew(self) -> None:
        with replacing(self._path) as temporary:
            lines = (line | {CHECKSUM: of_json(line)} for line in self._lines.values())
            temporary.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def _read(path: Path) -> tuple[dict[str, dict[str, Any]], bool]:
    """The lines, and whether all there is are lines that count."""
    found: dict[str, dict[str, Any]] = {}
    whole = True
    if not os.path.lexists(path):
        return found, whole
    with open_regular(path) as file:
        for data in iter(lambda: file.readline(_MOST_LINE), b""):
            line = _line(data)
            if line is None:
                whole = False
                continue
            whole &= line["output"] not in found
            found[line["output"]] = line
    return found, whole


def _line(data: bytes) -> dict[str, Any] | None:
    """None for what is no line of ours, or a damaged one."""
    try:
        line = parse_json(data) if data.endswith(b"\n") else None
        if isinstance(line, dict) and isinstance(line.get("output"), str) and line.pop(CHECKSUM, None) == of_json(line):
            return line
    except ValueError:
        pass
    return None


def _stored(output: Path) -> dict[str, Any]:
    """What is known of an output without its makers. OutputError where it cannot be read."""
    try:
        content = output / _INDEX if output.is_dir() else output
        return {**_quick(output), "sha256": of_file(content)}
    except (OSError, InputError) as error:
        raise OutputError(f"cannot read {output} again: {error}") from error


def _quick(output: Path) -> dict[str, int]:
    status = (output / _INDEX if output.is_dir() else output).stat()
    return {"bytes": status.st_size, "time": status.st_mtime_ns}
