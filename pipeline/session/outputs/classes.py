"""The classes of what a model returns: which can be made again, how, and how one is found by its name.

An object is made without its class's own code: it gets its memory and then its state, as it was. Only a distribution's
constructor is ever called, and only one that takes numbers. A name that comes from disk is looked up among the classes
that are there already; nothing is imported for it.
"""

from __future__ import annotations

import enum
import hashlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FunctionType, MemberDescriptorType, ModuleType, SimpleNamespace
from typing import Any

from torch import nn

__all__ = [
    "ClassName",
    "base_of",
    "blank",
    "class_of",
    "constructor_arguments",
    "digest_of",
    "has_method",
    "holds",
    "set_state",
    "state_of",
    "why_refused",
]

_BASES: tuple[type, ...] = (OrderedDict, dict, tuple, list, SimpleNamespace, object)
"""Base layouts of objects; each can make an empty object of a derived class."""


class ClassName(str):
    """``module:qualname`` of a class; with the class itself, unless the name was read from disk."""

    met: type | None = None

    @staticmethod
    def of(cls: type) -> ClassName:
        """The name of a class that is here."""
        name = ClassName(f"{cls.__module__}:{cls.__qualname__}")
        name.met = cls
        return name


def class_of(name: str) -> type | None:
    """The class of this name: the one that was met, or one that is already imported. None if there is none."""
    if isinstance(name, ClassName) and name.met is not None:
        return name.met
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    if not isinstance(found, ModuleType):
        return None
    for part in path.split("."):
        found = vars(found).get(part)  # not getattr: of a lazy module, that imports
        if not isinstance(found, type):
            return None
    return found if ClassName.of(found) == name else None


def why_refused(cls: type) -> str | None:
    """Why objects of this class cannot be made again; None where they can."""
    home = str(cls.__module__).partition(".")[0]
    if cls is SimpleNamespace:
        return None
    if home in sys.stdlib_module_names:
        return "it is of Python's own library"
    if home == "torch" and not str(cls.__module__).startswith("torch.distributions."):
        return "it is of PyTorch itself"
    if issubclass(cls, nn.Module):
        return "it is a module"
    if issubclass(cls, enum.Enum):
        return "it is an enumeration"
    if any("__del__" in vars(c) for c in cls.__mro__):
        return "it has something to do when it goes (__del__)"
    try:
        blank(cls)
    except TypeError:
        return "it keeps what Python cannot see"
    return None


def base_of(cls: type) -> type:
    """What objects of a class are underneath: dict, list, tuple, or a plain object."""
    return next(base for base in _BASES if base in cls.__mro__)


def blank(cls: type, items: tuple[Any, ...] = ()) -> Any:
    """An object without state. No code of the class runs. items: of a tuple. Raises TypeError for a foreign layout."""
    base: Any = base_of(cls)
    return base.__new__(cls, items) if base is tuple else base.__new__(cls)


def state_of(part: Any) -> dict[str, Any]:
    """All attributes that an object holds, those in slots included."""
    slots = {name: slot.__get__(part) for name, slot in _slots(type(part)).items() if _is_set(slot, part)}
    return slots | dict(getattr(part, "__dict__", {}))


def set_state(part: Any, state: Mapping[str, Any]) -> None:
    """Give a blank object its attributes. No code of the class runs."""
    slots = _slots(type(part))
    for name, value in state.items():
        if name in slots:
            slots[name].__set__(part, value)
        else:
            part.__dict__[name] = value


def has_method(cls: type, name: str) -> bool:
    """Does the class define a method of this name?"""
    return isinstance(_defined(cls, name), FunctionType)


def holds(cls: type, names: Iterable[str]) -> bool:
    """Can objects of the class have attributes of these names?"""
    return cls.__dictoffset__ != 0 or {*names} <= {*_slots(cls)}


def constructor_arguments(cls: type) -> tuple[str, dict[str, bool]] | None:
    """The name of the constructor's first argument; of each other one, whether it must be given.

    None where it is not a plain function, or where making an object takes more than calling it.
    """
    plain = type(cls).__call__ is type.__call__ and _defined(cls, "__new__") is object.__new__
    init = _defined(cls, "__init__")
    if not plain or not isinstance(init, FunctionType):
        return None
    code, only_by_name = init.__code__, init.__kwdefaults__ or {}
    if code.co_argcount < 2:  # nothing to give a tensor to
        return None
    names = code.co_varnames[1 : code.co_argcount]
    defaults = len(init.__defaults__ or ())
    needed = {name: at < len(names) - defaults for at, name in enumerate(names)}
    more = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    del needed[names[0]]
    return names[0], needed | {name: name not in only_by_name for name in more}


def digest_of(cls: type) -> str:
    """Of the code of a class and of its bases, but for those of Python and PyTorch: the same in every process."""
    parts = [(c.__module__, c.__qualname__, *_members(c)) for c in cls.__mro__ if not _is_of_the_system(c)]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _defined(cls: type, name: str) -> Any:
    return next((vars(c)[name] for c in cls.__mro__ if name in vars(c)), None)


def _slots(cls: type) -> dict[str, Any]:
    own = (c for c in reversed(cls.__mro__) if not _is_of_the_system(c))
    return {name: d for c in own for name, d in vars(c).items() if isinstance(d, MemberDescriptorType)}


def _is_set(slot: Any, part: Any) -> bool:
    try:
        slot.__get__(part)
    except AttributeError:
        return False
    return True


def _is_of_the_system(cls: type) -> bool:
    home = str(cls.__module__).partition(".")[0]
    return home == "torch" or home in sys.stdlib_module_names


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    for name, member in sorted(vars(cls).items()):
        functions = [f for f in _functions(member) if isinstance(f, FunctionType)]
        if functions:
            yield name, [(_code(f.__code__), _plain(f.__defaults__), _plain(f.__kwdefaults__)) for f in functions]
        elif isinstance(member, (bool, int, float, str, type(None))) and not name.startswith("__"):
            yield name, member


def _functions(member: Any) -> tuple[Any, ...]:
    if isinstance(member, property):
        return member.fget, member.fset
    found: Callable[..., Any] = getattr(member, "__func__", getattr(member, "func", member))
    return (found,)


def _code(code: CodeType) -> tuple[Any, ...]:
    return code.co_code.hex(), code.co_names, code.co_varnames, [_plain(c) for c in code.co_consts]


def _plain(value: Any) -> Any:
    """The value as text that is the same in every process."""
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return [(str(k), _plain(v)) for k, v in value.items()]
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    plain = isinstance(value, (bool, int, float, complex, str, bytes, type(None), type(...)))
    return repr(value) if plain else type(value).__qualname__
