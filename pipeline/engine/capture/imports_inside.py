"""What functions import when they are called."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import resolve_name
from types import CodeType
from typing import NamedTuple

__all__ = ["Imported", "codes_of", "imports_inside"]


class Imported(NamedTuple):
    """A module by its whole name, and the names that are taken from it; none for ``import module``."""

    module: str
    names: tuple[str, ...]


@lru_cache(maxsize=8192)
def imports_inside(code: CodeType, package: str) -> tuple[Imported, ...]:
    """Those in the code of a function itself. package: that of its module, for dots."""
    return tuple(_imports(code, package)) if dis.opmap["IMPORT_NAME"] in code.co_code[::2] else ()


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """That of a function, and those of the functions inside."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from codes_of(inner)


def _imports(code: CodeType, package: str) -> Iterator[Imported]:
    steps = [*dis.get_instructions(code)]
    for n, step in enumerate(steps):
        if step.opname != "IMPORT_NAME":
            continue
        level, names = steps[n - 2].argval, steps[n - 1].argval
        dots = "." * (level if isinstance(level, int) else 0)
        try:
            module = resolve_name(dots + str(step.argval), package)
        except ImportError:  # more dots than packages: the call fails as well
            continue
        yield Imported(module, names if isinstance(names, tuple) else ())
