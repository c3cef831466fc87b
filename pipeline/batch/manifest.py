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

from tvae.pipeline.batch.shards import Shard
from tvae.pipeline.errors import InputError, OutputError, UsageError
from tvae.pipeline.files.atomic import replacing, write_error
from tvae.pipeline.files.checked import open_regular, parse_json
from tvae.pipeline.files.content_checksum import CHECKSUM, of_file, of_json
from tvae.pipeline.files.lock import OutputHeld, one_writer
from tvae.pipeline.latents.index import INDEX_NAME

__all__ = ["Manifest", "check_own", "manifest_name", "read_manifest"]

_BEGIN = b'{"output": '
"""Of every line."""
_MOST_LINE = 1 << 20
_QUICK = ("bytes", "time")
"""What of a line tells whether the output is still the one it is of."""


def manifest_name(shard: Shard | None) -> str:
    """Of the whole, or of a part."""
    return "manifest.jsonl" if shard is None else shard.name("manifest", ".jsonl")


def check_own(path: Path) -> None:
    """UsageError for a file in the place of a manifest without a line of ours, unless it is one that a kill has torn: a
    file of the user's is never written anew. OutputError where it cannot be read."""
    try:
        with open_regular(path) as file:
            first = file.readline(_MOST_LINE)
        ours = not first or _line(first) is not None or bool(read_manifest(path))
    except FileNotFoundError:
        return
    except OSError as error:
        raise write_error(path, error) from error
    torn = b"\n" not in first and first[: len(_BEGIN)] == _BEGIN[: len(first)]
    if not (ours or torn):
        raise UsageError(f"{path} is not a manifest of tvae; move it, or choose another output")


def read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    """The lines by their output; those that are damaged are left out. Empty where there is no file."""
    return _read(path)[0]


class Manifest:
    """The manifest of a folder while a run adds to it; leaving it puts what is there on the disk.

    Raises UsageError where another run has it, and for a file of its name that is none; OutputError where it cannot be
    written.
    """

    def __init__(self, folder: Path, shard: Shard | None = None) -> None:
        self._folder, self._path = folder, folder / manifest_name(shard)
        self._held = ExitStack()
        self._known: dict[str, dict[str, int]] = {}
        """Size and time of each output that has a line. Of a million of them all lines would fill the memory."""
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
            check_own(self._path)
            found, whole = _read(self._path)
            if not whole:
                self._write_anew()
        except OSError as error:
            self._held.close()
            raise write_error(self._path, error) from error
        except BaseException:
            self._held.close()
            raise
        self._known = {name: {key: line.get(key, -1) for key in _QUICK} for name, line in found.items()}
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
        stored = _stored(output)
        line = {"output": name, **stored, **facts}
        data = json.dumps(line | {CHECKSUM: of_json(line)}, ensure_ascii=True).encode() + b"\n"
        self._again |= name in self._known
        self._known[name] = {key: stored[key] for key in _QUICK}
        try:
            if self._file is None:  # a run that makes nothing leaves none
                self._file = self._path.open("ab")
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise write_error(self._path, error) from error

    def knows(self, output: Path) -> bool:
        """Is there a line for the output as it is now, by its size and time?"""
        try:
            return self._known.get(self._name(output)) == _quick(output)
        except OSError:
            return False

    def _name(self, output: Path) -> str:
        return output.relative_to(self._folder).as_posix()

    def _write_anew(self) -> None:
        with replacing(self._path) as temporary:
            lines = (line | {CHECKSUM: of_json(line)} for line in read_manifest(self._path).values())
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
    """What is known of an output without its makers; the checksum in a clip's index stands for all of its files, as it
    has theirs. OutputError where it cannot be read."""
    try:
        content = output / INDEX_NAME if output.is_dir() else output
        return {**_quick(output), "sha256": of_file(content)}
    except (OSError, InputError) as error:
        raise OutputError(f"cannot read {output} again: {error}") from error


def _quick(output: Path) -> dict[str, int]:
    status = (output / INDEX_NAME if output.is_dir() else output).stat()
    return {"bytes": status.st_size, "time": status.st_mtime_ns}
