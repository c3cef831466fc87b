"""How OneTrainer is set, by its files: concepts, and the settings of a training that caches depend on.

Read from ``TrainConfig`` of OneTrainer, whose values are taken where a file does not say.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvae.pipeline.caches.concepts.concept import Concept, concept_of, flag
from tvae.pipeline.caches.request import CacheRequest
from tvae.pipeline.caches.spec import Size
from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.checked import read_json

__all__ = ["Settings", "read_settings", "resolutions"]

_MOST = 64 << 20
_TYPES = {"FLOAT_16": "float16", "BFLOAT_16": "bfloat16", "FLOAT_32": "float32", "TFLOAT_32": "float32"}
_OFF = {
    "masked_training": "tvae writes no masks into it",
    "custom_conditioning_image": "tvae writes no conditioning images into it",
}
"""Settings with which a cache holds more, and what to say of them."""


@dataclass(frozen=True)
class Settings:
    """concepts: those that are switched on, in the order of the file, first those that are trained on, then, where
    they are used, those that validate. What a training is set to is None where no file of it was named."""

    concepts: tuple[Concept, ...]
    architecture: str | None = None
    resolution: str | None = None
    buckets: bool | None = None
    dtype: str | None = None
    """That pictures are read in, and latents stored in unless float16 overflows there."""
    instead: str | None = None
    """Stored, of VAEs that overflow in float16."""


def read_settings(request: CacheRequest, sized: bool) -> Settings:
    """Reads the files that a request names. sized: does it name a size?

    Raises UsageError for what cannot be read or used, and for what is said twice.
    """
    config = None if request.config is None else _read(request.config, dict, "a training configuration")
    concepts: Any = None
    name = request.concepts or request.config
    if request.concepts is not None:
        concepts = _read(request.concepts, list, "a file of concepts")
    elif config is not None:
        concepts = config.get("concepts")
        if concepts is None:
            other = _text(config, "concept_file_name", "training_concepts/concepts.json", name or "")
            raise UsageError(f"{name} has its concepts in another file, {other}; name it with --concepts")
        if not isinstance(concepts, list):
            raise UsageError(f"{name}: concepts must be a list")
    else:
        raise UsageError("onetrainer takes its images from its concepts; name their file with --concepts")
    read = [concept_of(one, f"{name}: concept {number}") for number, one in enumerate(concepts, 1)]
    found = [one for one in read if one is not None]
    tests = [one for one in found if one.validates]
    trained = tuple(one for one in found if not one.validates)
    if config is None:
        return Settings(trained)
    where = str(request.config)
    kind = _text(config, "model_type", "STABLE_DIFFUSION_15", where)
    if request.architecture not in (None, kind):
        raise UsageError(f"{where} is for {kind}, and --arch says {request.architecture}; leave one of them out")
    if sized or not request.buckets.on:
        raise UsageError(f"{where} says resolution and buckets; leave --size and --buckets out")
    return _of_training(config, where, trained, tuple(tests))


def _of_training(
    config: Mapping[str, Any], where: str, trained: tuple[Concept, ...], tests: tuple[Concept, ...]
) -> Settings:
    for name, why in _OFF.items():
        if flag(config, name, False, where):
            raise UsageError(f"{where}: the cache of {name} holds more, and {why}; switch it off")
    if not flag(config, "latent_caching", True, where):
        raise UsageError(f"{where}: latent_caching is off, with which OneTrainer reads no cache; switch it on")
    if config.get("training_method") == "FINE_TUNE_VAE":
        raise UsageError(f"{where}: a VAE that is trained itself (FINE_TUNE_VAE) has no cache of its latents")
    return Settings(
        trained + tests if flag(config, "validation", False, where) else trained,
        _text(config, "model_type", "STABLE_DIFFUSION_15", where),
        _text(config, "resolution", "512", where),
        flag(config, "aspect_ratio_bucketing", True, where),
        dtype := _type(config, "train_dtype", "FLOAT_16", where),
        _type(config, "fallback_train_dtype", "BFLOAT_16", where) if dtype == "float16" else None,
    )


def resolutions(text: str, where: str) -> tuple[int | Size, ...]:
    """``512``, or ``512, 768``: sides of squares of the wanted areas, of which each image has one by chance. Or
    ``512x768``: width and height of all images. where: says whose it is. Raises UsageError."""
    parts = text.strip().split("x") if "x" in text and "," not in text else text.split(",")
    if not all(map(_is_side, parts)) or ("x" in text and len(parts) != 2):
        told = reprlib.repr(text)
        raise UsageError(f"{where}: {told} is no resolution; it must be like 512, 512,768 or 512x768")
    numbers = tuple(int(part) for part in parts)
    return ((numbers[0], numbers[1]),) if "x" in text else numbers


def _is_side(text: str) -> bool:
    digits = text.strip().lstrip("0")
    return digits.isascii() and digits.isdigit() and len(digits) <= 5 and int(digits) < 1 << 16


def _read(name: str, kind: type, what: str) -> Any:
    try:
        found = read_json(Path(name), _MOST)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{name} is not {what} of OneTrainer: {error}") from error
    if not isinstance(found, kind):
        other = "list, as of concepts: pass it as --concepts" if isinstance(found, list) else "single object"
        raise UsageError(f"{name} is not {what} of OneTrainer: it holds a {other}")
    return found


def _text(data: Mapping[str, Any], name: str, usual: str, where: str) -> str:
    value = data.get(name, usual)
    if type(value) not in (str, int):
        raise UsageError(f"{where}: {name} must be a text, found {reprlib.repr(value)}")
    return str(value)


def _type(data: Mapping[str, Any], name: str, usual: str, where: str) -> str:
    value = _text(data, name, usual, where)
    if value not in _TYPES:
        raise UsageError(f"{where}: {name} must be one of {', '.join(_TYPES)}, found {reprlib.repr(value)}")
    return _TYPES[value]
