"""Plain values and code as text that is the same in every process: without addresses, paths, or the order of sets."""

from __future__ import annotations

import hashlib
from dis import opmap
from functools import lru_cache
from types import CodeType, EllipsisType, NotImplementedType
from typing import Any

import torch

__all__ = ["PLAIN", "code_of", "plain", "read_as_global"]

PLAIN: set[type] = {
    *(int, float, complex, bool, str, bytes, type(None), EllipsisType, NotImplementedType, range),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
}
"""Types whose values nothing can write to, and which their text tells apart."""


def plain(value: Any) -> str | None:
    """The text of a plain value; None for any other."""
    kind = type(value)
    if kind is int:
        return f"int {value:x}"
    return f"{kind.__name__} {value!r}" if kind in PLAIN else None


@lru_cache(maxsize=8192)
def code_of(code: CodeType) -> tuple[str, tuple[str, ...]]:
    """Digest of what a code object does, and the names it mentions: strings, as ``getattr`` takes them, too."""
    names = dict.fromkeys(code.co_names)
    constants = [_constant(value, names) for value in code.co_consts]
    parts = (
        code.co_code,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags),
        (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_exceptiontable),
        constants,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest(), tuple(names)


_LOAD_GLOBAL, _LOAD_NAME, _EXTENDED = (opmap[name] for name in ("LOAD_GLOBAL", "LOAD_NAME", "EXTENDED_ARG"))


@lru_cache(maxsize=8192)
def read_as_global(code: CodeType) -> frozenset[str]:
    """Of the names that code mentions those that it looks up in its module, and its strings: not mere attributes."""
    found, more = set[str](), 0
    for op, low in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        number = more | low
        more = number << 8 if op == _EXTENDED else 0
        if op in (_LOAD_GLOBAL, _LOAD_NAME):
            found.add(code.co_names[number >> 1 if op == _LOAD_GLOBAL else number])
    for value in code.co_consts:
        for each in value if isinstance(value, tuple | frozenset) else (value,):
            if isinstance(each, CodeType):
                found |= read_as_global(each)
            elif isinstance(each, str):
                found.add(each)
    return frozenset(found)


def _constant(value: Any, names: dict[str, None]) -> str:
    if isinstance(value, CodeType):
        digest, inner = code_of(value)
        names.update(dict.fromkeys(inner))
        return f"code {digest}"
    if isinstance(value, tuple):
        return f"({', '.join(_constant(v, names) for v in value)})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(_constant(v, names) for v in value))}}}"
    if isinstance(value, str) and value.isidentifier():
        names.setdefault(value)
    return plain(value) or repr(value)
