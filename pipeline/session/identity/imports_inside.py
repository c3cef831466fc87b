"""What functions import when they are called."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.util import resolve_name
from types import CodeType
from typing import NamedTuple

__all__ = ["Imported", "codes_of", "imports_inside", "named_inside"]


class Imported(NamedTuple):
    """A module by its whole name, and the names that are taken from it; none for ``import module``."""

    module: str
    names: tuple[str, ...]


@lru_cache(maxsize=8192)
def imports_inside(code: CodeType, package: str) -> tuple[Imported, ...]:
    """Those in the code of a function itself. package: that of its module, for dots."""
    return tuple(_imports(code, package)) if dis.opmap["IMPORT_NAME"] in code.co_code[::2] else ()


@lru_cache(maxsize=8192)
def named_inside(code: CodeType, package: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Modules that code may load by their names: its strings, and these texts, where it mentions what loads by name."""
    names = {*code.co_names}
    if not names & {"import_module", "__import__"} and not {"sys", "modules"} <= names:
        return ()
    found: dict[str, None] = {}
    for value in (*code.co_consts, *texts):
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and all(map(str.isidentifier, text.lstrip(".").split("."))):
                with suppress(ImportError):  # more dots than packages
                    found[resolve_name(text, package)] = None
    return tuple(found)


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
