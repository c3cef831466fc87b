"""One of OneTrainer's concepts: a folder of images, and how they are to be trained on.

Read from ``ConceptConfig`` and ``BaseConfig`` of OneTrainer, and from ``DiskCache`` of mgds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as short
from typing import Any, Literal

from tvae.pipeline.errors import UsageError

__all__ = ["Concept", "concept_of", "flag"]

Setting = bool | float | str

_IMAGE: dict[str, Setting] = {
    "enable_crop_jitter": True,
    "enable_random_flip": False,
    "enable_fixed_flip": False,
    "enable_random_rotate": False,
    "enable_fixed_rotate": False,
    "random_rotate_max_angle": 0.0,
    "enable_random_brightness": False,
    "enable_fixed_brightness": False,
    "random_brightness_max_strength": 0.0,
    "enable_random_contrast": False,
    "enable_fixed_contrast": False,
    "random_contrast_max_strength": 0.0,
    "enable_random_saturation": False,
    "enable_fixed_saturation": False,
    "random_saturation_max_strength": 0.0,
    "enable_random_hue": False,
    "enable_fixed_hue": False,
    "random_hue_max_strength": 0.0,
    "enable_resolution_override": False,
    "resolution_override": "512",
    "enable_random_circular_mask_shrink": False,
    "enable_random_mask_rotate_crop": False,
}
"""Settings of a concept's images, with what OneTrainer takes where the file does not say. Of those of masks, which are
read only where it trains with masks, the cache depends by name alone."""
_IMAGE_VERSION = 0
_AUGMENTED = ("rotate", "brightness", "contrast", "saturation", "hue")
_CHANGED = [f"{how}_{what}" for what in _AUGMENTED for how in ("random", "fixed")]
"""Augmentations that change more of a picture than which side is left."""
_TYPED_FROM = 2
"""The version of concepts from which on ``type`` says what ``validation_concept`` did."""


@dataclass(frozen=True)
class Concept:
    """What decides which entries a cache has, and what is in them."""

    path: str
    """Of the folder, as it was typed."""
    subfolders: bool
    variations: int
    validates: bool
    """Its images are not trained on; they show how well others were."""
    key: str
    """That the trainer finds the cache by."""
    jitter: bool
    """Crops are moved by chance, not centred."""
    flip: Literal["never", "chance", "always"]
    resolution: str | None
    """In place of that of the training; see ``resolutions``."""


def concept_of(data: Any, where: str) -> Concept | None:
    """Of a concept in the file; None where it is switched off. where: says which it is, for errors.

    Raises UsageError for what is missing or of another type, and for settings that tvae does not carry out.
    """
    if not isinstance(data, dict):
        raise UsageError(f"{where} is no concept: an object was expected")
    path = _text(data, "path", "", where)
    where = f"{where} ('{path}')" if path else where
    if not flag(data, "enabled", True, where):
        return None
    if type(seed := data.get("seed")) is not int:
        raise UsageError(f"{where}: it has no seed, which OneTrainer draws; open the file in OneTrainer, which adds it")
    given = data.get("image", {})
    if not isinstance(given, dict):
        raise UsageError(f"{where}: image must be an object")
    image = {name: _setting(given, name, usual, where) for name, usual in _IMAGE.items()}
    if changed := [name for name in _CHANGED if image[f"enable_{name}"]]:
        raise UsageError(
            f"{where}: tvae does not change pictures as enable_{changed[0]} does; switch it off in OneTrainer's "
            "concept, under image augmentation"
        )
    variations = data.get("image_variations", 1)
    if type(variations) is not int or not 1 <= variations <= 10_000:
        raise UsageError(f"{where}: image_variations must be a number from 1 to 10000, found {short(variations)}")
    subfolders = flag(data, "include_subdirectories", False, where)
    named = [path, seed, subfolders, {"__version": _IMAGE_VERSION, **image}]
    flip: Literal["never", "chance", "always"] = "always" if image["enable_fixed_flip"] else "never"
    return Concept(
        path,
        subfolders,
        variations,
        _validates(data, where),
        hashlib.sha256(json.dumps(named, sort_keys=True, separators=(",", ":")).encode()).hexdigest(),
        bool(image["enable_crop_jitter"]),
        "chance" if image["enable_random_flip"] else flip,
        str(image["resolution_override"]) if image["enable_resolution_override"] else None,
    )


def _validates(data: Mapping[str, Any], where: str) -> bool:
    version = data.get("__version", 0)
    if type(version) is int and version < _TYPED_FROM:
        return flag(data, "validation_concept", False, where)
    return _text(data, "type", "STANDARD", where) == "VALIDATION"


def _setting(data: Mapping[str, Any], name: str, usual: Setting, where: str) -> Setting:
    if isinstance(usual, bool):
        return flag(data, name, usual, where)
    value = data.get(name, usual)
    if isinstance(usual, float) and type(value) in (int, float):
        return float(value)
    if isinstance(usual, str) and type(value) in (int, str):
        return str(value)
    raise UsageError(
        f"{where}: {name} must be a {'number' if isinstance(usual, float) else 'text'}, found {short(value)}"
    )


def flag(data: Mapping[str, Any], name: str, usual: bool, where: str) -> bool:
    """A setting that is true or false. Raises UsageError."""
    value = data.get(name, usual)
    if type(value) is not bool:
        raise UsageError(f"{where}: {name} must be true or false, found {short(value)}")
    return value


def _text(data: Mapping[str, Any], name: str, usual: str, where: str) -> str:
    value = data.get(name, usual)
    if type(value) is not str:
        raise UsageError(f"{where}: {name} must be a text, found {short(value)}")
    return value
