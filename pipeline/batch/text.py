"""A job as text: the TOML that says the same again, and the JSON Schema by which editors check and complete it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvae.pipeline.batch.job_file import Step
from tvae.pipeline.batch.keys import cache_keys, keys, override_keys
from tvae.pipeline.jobs.job import OPERATIONS

__all__ = ["as_toml", "schema"]

_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


def as_toml(steps: Sequence[Step]) -> str:
    """All steps, each with what it has by default for the file; it runs from the same folder."""
    return "\n".join("\n".join(_step(step.said)) + "\n" for step in steps)


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
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


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
        "operation": {"enum": [*OPERATIONS]},
        "inputs": _TEXTS,
        "list": _TEXTS,
        "output": {"type": "string"},
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
