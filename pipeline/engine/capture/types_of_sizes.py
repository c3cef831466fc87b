"""``type(size)`` in code that no copy stands in for (see ``whole_numbers``): it gives the exporter's class in silence.

The functions that a capture runs are looked at as they return, where the model has one that may ask so.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from types import CodeType, FrameType, FunctionType
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from tvae.pipeline.engine.capture.imports_inside import codes_of, imports_inside
from tvae.pipeline.engine.capture.kinds_of_sizes import KINDS, KNOW_SIZES, knows_sizes
from tvae.pipeline.errors import UnsupportedOp

__all__ = ["refusing_types"]

_PLAIN = {int, float, bool, Tensor, nn.Parameter}
_NAMES = {"int", "float", "bool", "Tensor", "Parameter"}
_SHOWN = ("LOAD_ATTR", "LOAD_METHOD", "FORMAT_", "CONVERT_VALUE")
"""What may be done with a type that tells no number from a size."""
_TEXT = {"eval", "exec", "__import__", "import_module"}


@contextmanager
def refusing_types(functions: Iterable[FunctionType], stand_in: type) -> Iterator[None]:
    """Raises UnsupportedOp after the block where such code was run.

    functions: those that the model may run. stand_in: the class of the globals of copies.
    """
    if not any(_may_ask(function.__code__, function.__globals__) for function in functions):
        yield
        return
    found: list[str] = []
    before = sys.getprofile()
    sys.setprofile(_looking(found, stand_in, before))
    try:
        yield
    finally:
        sys.setprofile(before)
    if found:
        why = (
            "it compares the type() of a size or a tensor, which is another while a model is captured: use isinstance()"
        )
        raise UnsupportedOp(found[0], "", why, whole=False)


def _looking(found: list[str], stand_in: type, before: Any) -> Callable[[FrameType, str, Any], None]:
    known: dict[int, tuple[CodeType, bool]] = {}  # kept alive, so that no id comes twice

    def look(frame: FrameType, event: str, arg: Any) -> None:
        if before is not None:
            before(frame, event, arg)
        if event != "return":
            return
        code = frame.f_code
        asks = known.get(id(code))
        if asks is None:
            asks = known[id(code)] = code, not knows_sizes(frame) and _compares(code, frame.f_globals)
        if asks[1] and type(frame.f_globals) is not stand_in and _holds([*frame.f_locals.values()], _is_of_sizes, 3):
            found.append(f"{frame.f_globals.get('__name__', '')}.{code.co_qualname}()")

    return look


def _may_ask(code: CodeType, names: Mapping[str, Any]) -> bool:
    """Or may what it imports, or has as text?"""
    for each in codes_of(code):
        if _TEXT & {*each.co_names} or _compares(each, names):
            return True
        imports = imports_inside(each, str(names.get("__package__") or ""))
        if any(_module_may_ask(one.module, each.co_names) for one in imports):
            return True
    return False


def _module_may_ask(name: str, mentioned: Iterable[str]) -> bool:
    """mentioned: names by which functions of it are taken."""
    package = name.partition(".")[0]
    if package in KNOW_SIZES or package in sys.stdlib_module_names:
        return False
    module = sys.modules.get(name)
    if module is None:
        try:
            return find_spec(name) is not None  # its code is not there to be looked at
        except (ImportError, ValueError):
            return False
    return _any_asks(vars(module), mentioned, set())


def _any_asks(names: Mapping[str, Any], mentioned: Iterable[str], seen: set[int]) -> bool:
    """Does one of these functions, or one that it calls?"""
    for value in [names[name] for name in mentioned if name in names]:
        members = [*vars(value).values()] if isinstance(value, type) else [value]
        for function in members:
            if isinstance(function, FunctionType) and id(function) not in seen:
                seen.add(id(function))
                code, names = function.__code__, function.__globals__
                if _compares(code, names) or _any_asks(names, code.co_names, seen):
                    return True
    return False


def _compares(code: CodeType, names: Mapping[str, Any]) -> bool:
    """Does it compare what ``type`` gives, and name the type of a number or a tensor?"""
    if "type" not in code.co_names or "type" in names:
        return False
    if not any(name in _NAMES or _holds(names.get(name), _is_plain_type, 2) for name in code.co_names):
        return False
    steps = [*dis.get_instructions(code)]
    return any(_is_compared(steps, n) for n, step in enumerate(steps) if _loads_type(step))


def _loads_type(step: dis.Instruction) -> bool:
    return step.argval == "type" and step.opname in ("LOAD_GLOBAL", "LOAD_NAME")


def _is_compared(steps: Sequence[dis.Instruction], n: int) -> bool:
    """Is the type that is found out at this step more than called or shown? Where nothing tells, it is."""
    place = _begins(steps[n])
    calls = [k for k, step in enumerate(steps[n:], n) if step.opname.startswith("CALL") and _begins(step) == place]
    if place is None or not calls:
        return True  # handed on, to ``map`` say
    then = next((step for step in steps[calls[0] + 1 :] if step.opname not in ("CACHE", "NOP")), steps[-1])
    return len(calls) == 1 and not then.opname.startswith(_SHOWN)


def _begins(step: dis.Instruction) -> tuple[int, int] | None:
    at = step.positions
    return None if at is None or at.lineno is None or at.col_offset is None else (at.lineno, at.col_offset)


def _is_plain_type(value: Any) -> bool:
    return isinstance(value, type) and value in _PLAIN


def _is_of_sizes(value: Any) -> bool:
    if isinstance(value, Tensor):
        return isinstance(value, FakeTensor | FunctionalTensor)
    return type(value) in KINDS


def _holds(value: Any, wanted: Callable[[Any], bool], depth: int) -> bool:
    """Is it such a thing, or a container of some?"""
    if wanted(value):
        return True
    inside = [*value] if type(value) in (dict, list, tuple, set, frozenset) else []
    inside += value.values() if type(value) is dict else ()
    return depth > 0 and any(_holds(each, wanted, depth - 1) for each in inside)
