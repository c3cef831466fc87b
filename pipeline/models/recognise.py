"""Which family a module belongs to: by its class, as long as its public calls are that class's own.

What is known of a family (its steps, its frames, a substitution) stands for what ``encode`` and ``decode`` of a known
class do. A subclass or an object that replaces these calls is a model of its own, whatever its name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from tvae.pipeline.models.families import FAMILIES

__all__ = ["family_of"]

_PACKAGES = ("diffusers", "tvae")
_CALLS = ("encode", "decode", "_encode", "_decode")


def family_of(module: nn.Module) -> str | None:
    """The known class whose ``encode`` and ``decode`` this module has, unchanged; None where it has others."""
    for cls in type(module).__mro__:
        package = cls.__module__.partition(".")[0]
        if cls.__name__ in FAMILIES and package in _PACKAGES:
            return cls.__name__ if all(_is_own(module, cls, name) for name in _CALLS) else None
    return None


def _is_own(module: nn.Module, cls: type, name: str) -> bool:
    """Is this method the one that the class's own file defines, or that it defines no such method?"""
    if name in vars(module):
        return False
    found: Any = getattr(type(module), name, None)
    if found is None:
        return True
    home = getattr(sys.modules.get(cls.__module__), "__file__", None)
    own = [code for code in _codes(found) if code.co_name == name]
    return bool(own) and all(
        code.co_filename == home and code.co_qualname == f"{cls.__qualname__}.{name}" for code in own
    )


def _codes(function: Any) -> Iterator[CodeType]:
    """The code of a function, and of those that its decorators wrap."""
    if isinstance(function, FunctionType):
        yield function.__code__
        for cell in function.__closure__ or ():
            yield from _codes(cell.cell_contents)
