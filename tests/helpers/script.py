"""A script of tests/gpu, which is no package, as a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["script_of"]


def script_of(name: str) -> ModuleType:
    """By its file's name. Nothing of it runs."""
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", Path(__file__).parents[1] / "gpu" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
