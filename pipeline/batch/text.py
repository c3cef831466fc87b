"""A job as text: the TOML that says the same again, and the JSON Schema by which editors check and complete it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvae.pipeline.batch.check import VERIFY
from tvae.pipeline.batch.keys import cache_keys, keys, override_keys
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs.job import OPERATIONS

__all__ = ["as_toml", "schema"]

_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


def as_toml(steps: Sequence[Mapping[str, Any]]) -> str:
    """Steps, as ``Step.said`` has them, each with what it has by default for the file; it runs from the same folder.

    Raises UsageError for names that are not of letters, which TOML cannot say.
    """
    return "\n".join("\n".join(_step(step)) + "\n" for step in steps)


def _step(said: Mapping[str, Any]) -> Iterator[str]:
    yield "[[step]]"
    yield from (f"{name} = {_value(value)}" for name, value in said.items() if name != "override")
    for override in said.get("override", []):
        yield ""
        yield "[[step.override]]"
        yield from (f"{name} = {_value(value)}" for name, value in override.items())


def _value(value: Any) -> str:
    """TOML's form, which for texts, numbers and lists of texts is JSON's but for one character."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_value(name)} = {_value(each)}" for name, each in value.items()) + "}"
    text = json.dumps(value, ensure_ascii=False)
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)
    return text


def _escaped(letter: str) -> str:
    if 0xD800 <= ord(letter) < 0xE000:
        raise UsageError("a name is no valid text of this system, and a job file cannot say it; rename the file")
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"


def schema() -> dict[str, Any]:
    """JSON Schema of a job file."""
    options = {name: dict(key.schema) for name, key in keys().items()}
    override = {
        "type": "object",
        "properties": {"match": _TEXTS, **{name: options[name] for name in override_keys()}},
        "required": ["match"],
        "additionalProperties": False,
    }
    own = {
        "operation": {"enum": [*OPERATIONS, VERIFY]},
        "source": {"type": "string"},
        "inputs": _TEXTS,
        "list": _TEXTS,
        "listed": _TEXTS,
        "jsonl": _TEXTS,
        "output": {"type": "string"},
        "output_file": {"type": "string"},
        "cache": {
            "type": "object",
            "properties": {name: dict(key.schema) for name, key in cache_keys().items()},
            "required": ["trainer"],
            "additionalProperties": False,
        },
        "override": {"type": "array", "items": override},
    }
    step = {
        "type": "object",
        "properties": {**own, **options},
        "required": ["operation"],
        "additionalProperties": False,
    }
    several = {
        "type": "object",
        "properties": {"step": {"type": "array", "items": step, "minItems": 1}, **options},
        "required": ["step"],
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a job of tvae batch",
        "oneOf": [several, step],
    }
