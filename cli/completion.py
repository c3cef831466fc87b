"""What a shell completes an option's value to. Light, but for the names of public VAEs, which the families know.

A completion that finds nothing leaves the value to the shell, which then completes names of files.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["configs", "devices", "dtypes", "kin", "preset_names", "presets", "trainers", "vaes"]


def preset_names(incomplete: str) -> list[str]:
    """Presets, the user's own included."""
    from tvae import presets

    return _beginning(presets.names(), incomplete)


def presets(incomplete: str) -> list[str]:
    """What ``--preset`` takes."""
    return _beginning(["auto"], incomplete) + preset_names(incomplete)


def dtypes(incomplete: str) -> list[str]:
    """What ``--dtype`` takes."""
    from tvae.presets.loader import DTYPES

    return _beginning(DTYPES, incomplete)


def devices(incomplete: str) -> list[str]:
    """Kinds of devices; which of them are here only torch knows, and it takes long to load."""
    return _beginning(("cuda", "mps", "xpu", "cpu"), incomplete)


def configs(incomplete: str) -> list[str]:
    """What ``--config`` takes."""
    from tvae.pipeline.bench.shapes import SHAPES

    return _beginning(SHAPES, incomplete)


def kin(incomplete: str) -> list[str]:
    """What ``--vae-of`` takes."""
    from tvae.pipeline.models.families import FAMILIES

    return _beginning((one.key for family in FAMILIES.values() for one in family.kin), incomplete)


def trainers(incomplete: str) -> list[str]:
    """What ``--for`` takes: the names of trainers' files; torch need not be loaded for them."""
    from importlib.util import find_spec
    from pathlib import Path

    found = find_spec("tvae.pipeline.caches")
    assert found is not None, "the package is installed whole"
    files = (file for place in found.submodule_search_locations or () for file in Path(place).glob("trainers/*.py"))
    names = {file.stem.replace("_", "-") for file in files if file.stem != "__init__"}
    return _beginning(sorted(names), incomplete)


def vaes(incomplete: str) -> list[str]:
    """``builtin`` once it is begun; before that, folders are wanted as often."""
    return _beginning(["builtin"], incomplete) if incomplete else []


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
