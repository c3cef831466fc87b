"""Damage, seeded: JSON with one place changed, and bytes with some changed. For the tests in tests/fuzz."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["STRANGE", "damaged_bytes", "mutated", "places", "read_tensor_file", "write_tensor_file"]

STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 1.5, -0.0, 1e308, 2**31, 2**32, -(2**31), 2**53, 2**63 - 1, 2**63, 2**64),
    *(10**30, -(10**30), float("nan"), float("inf"), float("-inf")),
    *("", "x", "\0", "\n", "../x", "/", ".", "a" * 5000, "1/0", "0/1", "1/30", "-1/2", "9" * 400, "\x1b[31m", "\ud800"),
    *([], {}, [[]], [None], [0, 0, 0, 0], [1, 2], {"a": 1}, [1e999], "os:system", "nan", "inf"),
)
"""Values that stand in the place of others."""
DEEP = "tvae-deep"
"""A text that ``text_of`` replaces by a list nested a hundred thousand deep."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside, the outermost included."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value[:8]):
            yield from places(inner, (*path, index))


def mutated(value: Any, rng: random.Random) -> Any:
    """A copy with one place changed: another value, none, one more, or the same many times."""
    path = rng.choice(list(places(value)))
    if not path:
        return rng.choice((*STRANGE, DEEP))
    new = copy.deepcopy(value)
    holder = new
    for step in path[:-1]:
        holder = holder[step]
    last, kind = path[-1], rng.random()
    if kind < 0.12:
        del holder[last]
    elif kind < 0.2 and isinstance(holder, list):
        holder += [copy.deepcopy(holder[last])] * rng.choice((1, 2, 1100))
    elif kind < 0.35 and type(holder[last]) is int:
        holder[last] += rng.choice((-1, 1, 8, -holder[last], 1 << 20))
    else:
        holder[last] = rng.choice((*STRANGE, DEEP))
    return new


def text_of(value: Any) -> bytes:
    """As JSON, with what JSON does not allow where the value has it."""
    return json.dumps(value).replace(f'"{DEEP}"', "[" * 100_000 + "]" * 100_000).encode()


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, cut off, doubled or taken out."""
    kind, at = rng.random(), rng.randrange(max(1, len(data)))
    if kind < 0.2:
        return data[:at]
    if kind < 0.3:
        return data[:at] + data[at + rng.randrange(1, 64) :]
    if kind < 0.4:
        return data[:at] + rng.randbytes(rng.randrange(1, 64)) + data[at:]
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 4, 32))):
        changed[rng.randrange(len(changed))] = rng.choice((0, 255, rng.randrange(256)))
    return bytes(changed)


def read_tensor_file(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header, with what is JSON inside its texts parsed, and the values' bytes."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    texts = header["__metadata__"]
    header["__metadata__"] = {key: _parsed(text) for key, text in texts.items()}
    return header, data[8 + length :]


def write_tensor_file(path: Path, header: Any, values: bytes) -> None:
    """Inverse of ``read_tensor_file``; what stands in the place of a text is written as JSON."""
    if isinstance(header, dict) and isinstance(header.get("__metadata__"), dict):
        texts = header["__metadata__"]
        header = {**header, "__metadata__": {k: v if isinstance(v, str) else _text(v) for k, v in texts.items()}}
    text = text_of(header)
    path.write_bytes(len(text).to_bytes(8, "little") + text + values)


def _text(value: Any) -> str:
    return text_of(value).decode()


def _parsed(text: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, (dict, list)) or found is None else text
