"""What is known of each family of VAE: what it takes, by which factors it shrinks space and time, how it goes in steps.

A file here is a family; it is found by being here. The engine knows none of this. A class that is not listed still runs
through ``TiledVAE``; the command line measures an unlisted image VAE and refuses an unlisted video VAE, whose rule for
clip lengths cannot be seen from outside.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from tvae.pipeline.models.calls import Frames, Side
from tvae.pipeline.models.families.family import Family, LatentGeometry
from tvae.pipeline.models.stepping import Stepping

__all__ = ["FAMILIES", "Family", "LatentGeometry"]
__all__ += ["describe", "frames_axis_of", "goes_by_frames", "stepping_of"]


def _found() -> dict[str, Family]:
    modules = (import_module(f"{__name__}.{info.name}") for info in iter_modules(__path__) if info.name != "family")
    found: list[Family] = [family for module in modules for family in module.FAMILIES]
    return {family.class_name: family for family in sorted(found, key=lambda f: (f.kind, f.class_name))}


FAMILIES: dict[str, Family] = _found()
"""By class."""


def describe() -> list[dict[str, Any]]:
    """The families, a JSON-able row each, for `tvae models`."""
    return [
        {"class_name": name, "kind": f.kind, "note": f.note, "configs": [*f.checkpoints], "of": [k.key for k in f.kin]}
        for name, f in FAMILIES.items()
    ]


def stepping_of(class_name: str, side: Side) -> Stepping | None:
    """The steps of a class of models, None for those that are not known to have any."""
    return FAMILIES[class_name].steps.get(side) if class_name in FAMILIES else None


def frames_axis_of(class_name: str, side: Side) -> Frames | None:
    """Where a class of models has the frames of a clip, None for those that strips of time do not serve."""
    return FAMILIES[class_name].frames.get(side) if class_name in FAMILIES else None


def goes_by_frames(class_name: str) -> bool:
    """Can a clip come and go frame by frame, in memory that does not grow with it?"""
    frames = frames_axis_of(class_name, "decode")
    return frames is not None and frames.alone
