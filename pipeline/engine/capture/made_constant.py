"""Where a capture made a symbolic size a constant: the operation, and the module that asked for it.

The exporter replaces a symbol by its number, without a message, when the number is needed (``int(h)``, a loop over
rows, an operation that takes no symbol). The call stack at that moment tells which code needed it.
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from tvae.pipeline.engine.ir.graph import Constant

__all__ = ["Lost", "asking_module", "module_of", "noting_constants"]


Lost = dict[str, Constant]
"""By the exporter's name of a size, such as ``L['inputs'][0].size()[2]``: who made it a constant first."""

_LARGE = 1 << 20
"""More rows than any input has, and a multiple of whatever a model divides them by."""

_REMAINDERS = ("Mod", "PythonMod")

_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parents[1])


@contextmanager
def noting_constants(model: nn.Module) -> Iterator[Lost]:
    """Sizes that become constants in this block and thread; none with a release of PyTorch that is built otherwise."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    environment: Any = ShapeEnv
    originals: dict[str, Any] = {name: getattr(environment, name, None) for name in ("_set_replacement", "_log_guard")}
    lost: Lost = {}
    if None in originals.values():
        yield lost
        return
    thread = threading.get_ident()  # others may be compiling
    names = {id(module): name for name, module in model.named_modules()}

    def note(env: Any, symbols: Iterable[Any]) -> None:
        if threading.get_ident() != thread:
            return
        sources = [s for symbol in symbols for s in getattr(env, "var_to_sources", {}).get(symbol, ())]
        sizes = [source.name() if callable(source.name) else source.name for source in sources]
        for size in set(sizes) - lost.keys():
            lost[size] = _whoever_asked(sys._getframe(2), names)

    def replaced(env: Any, symbol: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(value, "is_number", False):
            note(env, [symbol])
        return originals["_set_replacement"](env, symbol, value, *args, **kwargs)

    def guarded(env: Any, prefix: str, guard: Any, *args: Any, **kwargs: Any) -> Any:
        if _pins(guard):
            note(env, guard.free_symbols)
        return originals["_log_guard"](env, prefix, guard, *args, **kwargs)

    environment._set_replacement, environment._log_guard = replaced, guarded
    try:
        yield lost
    finally:
        for name, original in originals.items():
            setattr(environment, name, original)


def _pins(guard: Any) -> bool:
    """Is it true for a few sizes only (H·W = 3072, H² = 144)? Of pixels that became channels, say, it is true for every
    size (3·(H//(H//4))·(W//(W//4)) = 48); of a remainder for one in so many."""
    import sympy

    if not isinstance(guard, sympy.Eq):
        return False
    number, size = sorted(guard.args, key=lambda side: not side.is_number)
    if not number.is_number or not size.free_symbols or size.is_Symbol:
        return False
    if any(type(part).__name__ in _REMAINDERS for part in sympy.preorder_traversal(size)):
        return False
    return all(size.subs(dict.fromkeys(size.free_symbols, n)) != number for n in (_LARGE, _LARGE + 1))


def _whoever_asked(frame: FrameType | None, names: Mapping[int, str]) -> Constant:
    """The outermost operation of PyTorch's that the model called, else its own line; and its innermost module."""
    op, line = "", ""
    while frame is not None:
        file, inside = frame.f_code.co_filename, frame.f_locals
        if not file.startswith((_TORCH, _OURS)):
            line = linecache.getline(file, frame.f_lineno).strip() or f"{Path(file).name}:{frame.f_lineno}"
        elif not line and isinstance(inside.get("func"), torch._ops.OpOverload):
            op = str(inside["func"])
        if (module := module_of(frame, names)) is not None:
            return Constant(op or line, module)
        frame = frame.f_back
    return Constant(op or line, "")


def module_of(frame: FrameType, names: Mapping[int, str]) -> str | None:
    """The module that a frame works for: its ``self``, or what its first argument is, under any name. names: of the
    model's modules, by identity."""
    code, inside = frame.f_code, frame.f_locals
    first = inside.get(code.co_varnames[0]) if code.co_argcount else None
    return names.get(id(inside.get("self")), names.get(id(first)))


def asking_module(model: nn.Module, frame: FrameType | None) -> str:
    """The innermost module of the model that a frame works for, by name."""
    return _whoever_asked(frame, {id(module): name for name, module in model.named_modules()}).module
