"""What a sandbox and its worker processes say to each other: bounded JSON, each message after its length.

The worker says ``ready`` once. To ``path`` and its limits it answers with one of ``error`` (a line: the file is bad),
``fault`` (a line: a mistake of ours), or ``image``, ``channels`` (4: with alpha, where that was asked for) and
``warnings``, followed by the bytes of the pixels. Before it decodes it may ask for room: ``held`` bytes, to which the
answer is ``go``.

Of a video it answers ``video`` and ``warnings``, and then, until it is told to ``close``, to ``next`` with ``frame``
(its times) and the bytes of the pixels or with ``end``, and to ``count`` with ``count``, after any number of
``counting``. Asked for a file's ``streams`` (the stem they are copied to) or ``tags`` it answers with their record.
"""

from __future__ import annotations

import json
from typing import IO, Any

from tvae.pipeline.files.checked import parse_json

__all__ = ["SLOWEST", "receive", "seconds_for", "send"]

_MOST = 1 << 20
_LENGTH_BYTES = 4
SLOWEST = 10_000_000
"""Bytes a second, of a file and of what its picture takes: who is slower than that hangs."""


def seconds_for(work: int, least: float) -> float:
    """That so many bytes may take."""
    return least + work / SLOWEST


def send(file: IO[bytes], message: dict[str, Any]) -> None:
    """`OSError` where nobody reads."""
    data = json.dumps(message).encode("ascii")
    file.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    file.flush()


def receive(file: IO[bytes]) -> dict[str, Any]:
    """`EOFError` where nobody writes any more, `ValueError` for what is no message."""
    head = file.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        raise EOFError
    length = int.from_bytes(head, "big")
    if length > _MOST:
        raise ValueError(f"a message of {length} bytes")
    data = file.read(length)
    if len(data) < length:
        raise EOFError
    message = parse_json(data)
    if not isinstance(message, dict):
        raise ValueError("a message that is no object")
    return message
