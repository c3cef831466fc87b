"""The check of a preset's kernel levels: presets are data that know nothing of kernels. Imports no torch."""

from __future__ import annotations

from tvae.kernels import check_levels
from tvae.presets import Preset

__all__ = ["with_known_levels"]


def with_known_levels(preset: Preset) -> Preset:
    """The preset, if there are all the operations and levels that it names, else a ValueError that names its file."""
    try:
        check_levels(preset.levels)
    except ValueError as error:
        raise ValueError(f"preset '{preset.source}': {error}") from None
    return preset
