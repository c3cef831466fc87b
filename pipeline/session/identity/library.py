"""What belongs to PyTorch, NumPy or Python itself: their code is named, not read, and their versions are in the key."""

from __future__ import annotations

import platform
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType

import numpy as np
import torch

from tvae.pipeline.session.identity.sources import package_version

__all__ = ["library_class", "library_file", "library_function", "library_module", "versions"]

_PACKAGES = ("torch", "numpy")
_FOLDERS = tuple(
    {str(Path(file).parent) for file in (torch.__file__, np.__file__)}
    | {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")}
)
_INSTALLED = (
    "site-packages",
    "dist-packages",
)  # these folders are inside the standard library's folder and do not belong to it


def versions() -> dict[str, str]:
    """The versions that every identity depends on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "diffusers": package_version("diffusers"),
    }


@lru_cache(maxsize=8192)
def library_file(path: str) -> bool:
    """Is this the file of a library? ``path`` is a code object's, or a module's."""
    for folder in _FOLDERS:  # one folder may contain another
        if path.startswith(folder):
            rest = Path(path).relative_to(folder).parts if path != folder else ()
            if not (rest and rest[0] in _INSTALLED):
                return True
    return path.startswith("<frozen ")


@lru_cache(maxsize=8192)
def library_module(name: str) -> bool:
    """Is this module a library's?"""
    module = sys.modules.get(name)
    file = getattr(module, "__dict__", {}).get("__file__")  # not of a ``__getattr__`` that the module may have
    if isinstance(file, str):
        return library_file(file)
    root = name.partition(".")[0]
    return root in _PACKAGES or root in sys.stdlib_module_names


def library_function(function: FunctionType) -> bool:
    """Was its code written in a library? What a library generates for others, such as a dataclass's, is theirs."""
    code: CodeType = function.__code__
    if code.co_filename.startswith("<") and not code.co_filename.startswith("<frozen "):
        return library_module(str(function.__globals__.get("__name__", "")))
    return library_file(code.co_filename)


def library_class(kind: type) -> bool:
    """Is this class a library's?"""
    return library_module(kind.__module__)
