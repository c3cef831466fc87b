"""Tensors as text: ``str(t)``, ``f"{t:.2f}"``, ``"%s" % t``.

A model that only says it (``print``, ``logging``, ``warnings``, the message of an error) may do so while it is
captured. Of any other the result may go by the text, which is that of one value: that has to be known.
"""

from __future__ import annotations

import ast
import linecache
import sys
from functools import lru_cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from tvae.pipeline.engine.capture.kinds_of_sizes import KNOW_SIZES
from tvae.pipeline.engine.capture.made_constant import asking_module
from tvae.pipeline.errors import UnsupportedOp

__all__ = ["TEXTS", "text_of"]

TEXTS = (Tensor.__repr__, Tensor.__format__)
"""Every text of a tensor is made by one of these; ``str`` has no method of its own."""

_SAYING = {"print", "pprint", "write", "log", "debug", "info", "warning", "warn", "error", "critical", "exception"}
"""Functions and methods that say something."""
_LOGS = {"logging", "warnings", "traceback"}
_BETWEEN = ("torch._tensor", "torch.overrides")


def text_of(model: nn.Module, func: Any, args: Any, kwargs: Any) -> str:
    """What one of ``TEXTS`` gives in a trace of the model, called with these arguments. Raises UnsupportedOp for a text
    of values that are not known."""
    tensor = args[0]
    if not isinstance(tensor, FakeTensor):
        return str(func(*args, **kwargs))
    frame = _asking()
    known = tensor.constant
    if known is None:
        if frame is None or _only_says(frame):
            return Tensor.__repr__(tensor)  # its format takes no ``.2f``
        why = "the model may go by the text of a tensor, which depends on values; to print or log it is no problem"
        raise UnsupportedOp("str", asking_module(model, frame), why, whole=False)
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        real = nn.Parameter(known, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else known
        return repr(real) if func is Tensor.__repr__ else str(func(real, *args[1:], **kwargs))


def _asking() -> FrameType | None:
    """The frame of a model, or of what is none of Python's own, that asked for a text; None where PyTorch did, or what
    logs."""
    frame: FrameType | None = sys._getframe(2)
    between = True
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        package = name.partition(".")[0]
        between = between and (name in _BETWEEN or package == "tvae")
        if not between:
            if package in _LOGS or package in KNOW_SIZES:
                return None
            if package not in sys.stdlib_module_names:
                return frame
        frame = frame.f_back
    return None


def _only_says(frame: FrameType) -> bool:
    """Is what this frame is at part of an error that is raised, or of a call, whose result is not used, of a function
    that says something? Without a source it may be anything."""
    line, _, column, _ = [*frame.f_code.co_positions()][frame.f_lasti // 2]
    if line is None or column is None:
        return False
    return any(start <= (line, column) < end for start, end in _said(frame.f_code.co_filename))


@lru_cache(maxsize=64)
def _said(file: str) -> tuple[tuple[tuple[int, int], tuple[int, int]], ...]:
    """Where a file says something: lines and columns, from and to. What ``print`` returns is nothing to go by."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    parts: list[ast.stmt | ast.expr] = []
    for node in ast.walk(tree):
        printed = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        if printed or isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and _says(node.value)):
            parts.append(node)  # type: ignore[arg-type]
        elif isinstance(node, ast.Assert) and node.msg is not None:
            parts.append(node.msg)
    return tuple(((p.lineno, p.col_offset), (p.end_lineno or 0, p.end_col_offset or 0)) for p in parts)


def _says(call: ast.expr) -> bool:
    named = call.func if isinstance(call, ast.Call) else None
    name = named.attr if isinstance(named, ast.Attribute) else named.id if isinstance(named, ast.Name) else ""
    return name in _SAYING
