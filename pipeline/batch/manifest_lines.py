"""The lines of ``manifest.jsonl``: one for each output, with a checksum of itself."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from stat import S_ISDIR
from typing import Any, BinaryIO

from tvae.pipeline.batch.shards import Shard
from tvae.pipeline.errors import InputError, OutputError
from tvae.pipeline.files.atomic import replacing
from tvae.pipeline.files.checked import open_regular, parse_json
from tvae.pipeline.files.content_checksum import CHECKSUM, of_file, of_json
from tvae.pipeline.files.written import WrittenFile
from tvae.pipeline.latents.index import INDEX_NAME

__all__ = [
    "State",
    "facts_on_disk",
    "is_manifest",
    "line_for",
    "lines_in",
    "manifest_name",
    "read_manifest",
    "said_state",
    "state_of",
    "write_anew",
]

State = tuple[int, int, str | None]
"""Bytes and time of an output, and in a store its version: they tell whether it is still the one that its line is
of."""
_MOST_LINE = 1 << 20


def manifest_name(shard: Shard | None) -> str:
    """Of the whole, or of a part."""
    return "manifest.jsonl" if shard is None else shard.name("manifest", ".jsonl")


def is_manifest(name: str) -> bool:
    """Is a file called as the manifest of a folder, or of a part of it?"""
    return name == "manifest.jsonl" or fnmatchcase(name, "manifest-*-of-*.jsonl")


def read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    """The lines by their output; those that are damaged are left out. Empty where there is no file."""
    if not os.path.lexists(path):
        return {}
    with open_regular(path) as file:
        return {line["output"]: line for _, line in lines_in(file) if line is not None}


def lines_in(file: BinaryIO) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """What is left of a file, line by line, and what each says; None for what is no line of ours, or a damaged one."""
    return ((data, _read(data)) for data in _pieces(file))


def line_for(name: str, facts: Mapping[str, Any]) -> bytes:
    """The line of an output: its name below the folder, and what to say of it."""
    line = {"format": "tvae manifest", "output": name, **facts}
    return json.dumps(line | {CHECKSUM: of_json(line)}, ensure_ascii=True).encode() + b"\n"


def write_anew(path: Path) -> None:
    """Leaves out what is no line of ours, and all lines of an output but its last. Holds no lines in memory."""
    with replacing(path) as temporary, open_regular(path) as old, temporary.open("wb") as new:
        last = {line["output"]: n for n, (_, line) in enumerate(lines_in(old)) if line is not None}
        kept = {*last.values()}
        old.seek(0)
        new.writelines(data for n, data in enumerate(_pieces(old)) if n in kept)


def facts_on_disk(output: Path, file: WrittenFile | None = None) -> dict[str, Any]:
    """What is known of an output without its makers; the checksum in a clip's index stands for all of its files, as it
    has theirs. file: what it was when it was written; then nothing is read. OutputError where it cannot be read."""
    if file is not None:
        return {"bytes": file.size, "time": file.mtime_ns, "sha256": file.sha256}
    try:
        size, time, _ = state_of(output)
        return {"bytes": size, "time": time, "sha256": of_file(_content(output))}
    except (OSError, InputError) as error:
        raise OutputError(f"cannot read {output} again: {error}") from error


def state_of(output: Path) -> State:
    """As it is now. `OSError` where it is not there."""
    status = output.stat()
    if S_ISDIR(status.st_mode):
        status = (output / INDEX_NAME).stat()
    return status.st_size, status.st_mtime_ns, None


def said_state(facts: Mapping[str, Any]) -> State:
    """As the output's line has it."""
    return facts.get("bytes", -1), facts.get("time", -1), facts.get("version")


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.readline(_MOST_LINE), b"")


def _content(output: Path) -> Path:
    return output / INDEX_NAME if output.is_dir() else output


def _read(data: bytes) -> dict[str, Any] | None:
    try:
        line = parse_json(data) if data.endswith(b"\n") else None
        if isinstance(line, dict) and isinstance(line.get("output"), str) and line.pop(CHECKSUM, None) == of_json(line):
            return line
    except ValueError:
        pass
    return None
