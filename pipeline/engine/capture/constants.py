"""Find who made a symbolic size a constant during a capture: the operation, and the module that called it.

The exporter replaces a symbol by its number, without a message, when a number is needed (``int(h)``, a loop over rows,
an operation that takes no symbol). The call stack at that moment tells which code needed it.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import nn

from tvae.pipeline.engine.capture.thread_patch import patched
from tvae.pipeline.engine.ir.graph import Constant

__all__ = ["Pinned", "calling_module", "failing_line", "watch_constants"]

Pinned = dict[str, Constant]
"""Who first made a size a constant, by the exporter's name of the size (``L['inputs'][0].size()[2]``)."""

_LARGE = 1 << 20
"""More rows than any input has, and a multiple of whatever a model divides them by."""

_REMAINDERS = ("Mod", "PythonMod")

_TORCH = str(Path(torch.__file__).parent)
_TVAE = str(Path(__file__).parents[1])


@contextmanager
def watch_constants(model: nn.Module) -> Iterator[Pinned]:
    """Record the sizes that become constants in this block and thread."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    pinned: Pinned = {}
    names = _module_names(model)
    set_replacement: Any = getattr(ShapeEnv, "_set_replacement", None)
    log_guard: Any = getattr(ShapeEnv, "_log_guard", None)

    def record(environment: Any, symbols: Iterable[Any]) -> None:
        sources = [s for symbol in symbols for s in getattr(environment, "var_to_sources", {}).get(symbol, ())]
        sizes = [source.name() if callable(source.name) else source.name for source in sources]
        for size in set(sizes) - pinned.keys():
            pinned[size] = _caller(sys._getframe(2), names)

    def replaced(environment: Any, symbol: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(value, "is_number", False):
            record(environment, [symbol])
        return set_replacement(environment, symbol, value, *args, **kwargs)

    def guarded(environment: Any, prefix: str, guard: Any, *args: Any, **kwargs: Any) -> Any:
        if _pins(guard):
            record(environment, guard.free_symbols)
        return log_guard(environment, prefix, guard, *args, **kwargs)

    with patched(ShapeEnv, "_set_replacement", replaced), patched(ShapeEnv, "_log_guard", guarded):
        yield pinned


def failing_line(model: nn.Module, traceback: TracebackType | None) -> Constant:
    """Return where in a model an exception was raised: its innermost module, and the operation or line there."""
    names = _module_names(model)
    op = ""
    for frame, number in [*walk_tb(traceback)][::-1]:
        if isinstance(frame.f_locals.get("func"), torch._ops.OpOverload):
            op = str(frame.f_locals["func"])
        if (module := _module_of(frame, names)) is not None:
            line = linecache.getline(frame.f_code.co_filename, number).strip()
            return Constant(op or line, module)
    return Constant(op or "torch.export", "")


def calling_module(model: nn.Module, frame: FrameType | None) -> str:
    """Return the name of the innermost module of the model that a frame works for."""
    return _caller(frame, _module_names(model)).module


def _module_names(model: nn.Module) -> dict[int, str]:
    return {id(module): name for name, module in model.named_modules()}


def _pins(guard: Any) -> bool:
    """Return whether a guard holds for a few sizes only (H*W = 3072, H**2 = 144).

    Pixels that became channels hold for every size (3*(H//(H//4))*(W//(W//4)) = 48), a remainder for one in so many.
    """
    import sympy

    if not isinstance(guard, sympy.Eq):
        return False
    number, size = sorted(guard.args, key=lambda side: not side.is_number)
    if not number.is_number or not size.free_symbols or size.is_Symbol:
        return False
    if any(type(part).__name__ in _REMAINDERS for part in sympy.preorder_traversal(size)):
        return False
    return all(size.subs(dict.fromkeys(size.free_symbols, n)) != number for n in (_LARGE, _LARGE + 1))


def _caller(frame: FrameType | None, names: Mapping[int, str]) -> Constant:
    """Return the outermost operation of PyTorch that the model called, else its own line; and its innermost module."""
    op, line = "", ""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _TVAE)):
            line = linecache.getline(file, frame.f_lineno).strip() or f"{Path(file).name}:{frame.f_lineno}"
        elif not line and isinstance(frame.f_locals.get("func"), torch._ops.OpOverload):
            op = str(frame.f_locals["func"])
        if (module := _module_of(frame, names)) is not None:
            return Constant(op or line, module)
        frame = frame.f_back
    return Constant(op or line, "")


def _module_of(frame: FrameType, names: Mapping[int, str]) -> str | None:
    """Return the name of the module that a frame has as ``self`` or as its first argument."""
    code, local = frame.f_code, frame.f_locals
    first = local.get(code.co_varnames[0]) if code.co_argcount else None
    return names.get(id(local.get("self")), names.get(id(first)))
