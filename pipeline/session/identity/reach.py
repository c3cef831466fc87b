"""The code that a module may run: functions, classes, and what their names stand for.

Of every class that is met, only functions are followed whose names some followed function mentions. So a model's code
for saving itself, and all that it imports, is no part of the identity. A name that is put together at run time
(``getattr(self, "con" + "v")``) is not followed; the digest of the sources covers it. Nor is a module that is loaded by
such a name. The code of libraries is named, not read; but what was put under one of their names and is not theirs
is followed.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import defaultdict
from collections.abc import Mapping
from itertools import chain
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from tvae.pipeline.session.identity.code import code_of, read_as_global
from tvae.pipeline.session.identity.imports_inside import codes_of, imports_inside, named_inside
from tvae.pipeline.session.identity.library import library_class, library_function, library_module
from tvae.pipeline.session.identity.ours import NATIVE, WRAPPERS, contents, ours, tells_apart, wrapped

if TYPE_CHECKING:
    from tvae.pipeline.session.identity.walk import Walk

__all__ = ["CODE", "Reach"]

CODE = (FunctionType, MethodType, ModuleType, type, *WRAPPERS, *NATIVE)

_ENTRIES = ("encode", "decode", "forward")
_UNUSED = {
    *("__module__", "__qualname__", "__name__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__slots__"),
    *("__repr__", "__str__", "__dir__", "__sizeof__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"),
    *("__copy__", "__deepcopy__", "__init_subclass__", "__subclasshook__", "__class_getitem__", "__abstractmethods__"),
    *("__parameters__", "__orig_bases__", "__match_args__", "__dataclass_fields__", "__dataclass_params__", "__del__"),
    *("__static_attributes__", "__firstlineno__", "__annotate__", "__annotations_cache__", "__annotate_func__"),
    *("__type_params__", "__jit_unused_properties__", "__constants__", "__ignored__"),
}
"""Names of classes that Python does not look up while a model runs."""
_CONSTRUCTION = {"__init__", "__new__", "__post_init__"}

_ENVIRONMENT = {"environ", "environb", "getenv", "getenvb"}


class Reach:
    """See the module's docstring. sources: modules that hold the code that was met, other than libraries'.
    asks_training: does some of it mention ``training``? asks_gradients: or ``requires_grad``? mentioned: the names that
    it mentions."""

    def __init__(self, walk: Walk) -> None:
        self.sources: set[str] = set()
        self.asks_training = self.asks_gradients = False
        self._walk = walk
        self.mentioned: set[str] = set()
        self._spaces: dict[type, Mapping[str, Any]] = {}  # vars() of a class is another object each time
        self._holders: dict[str, list[type]] = defaultdict(list)
        self._members: set[tuple[type, str]] = set()
        self._followed: set[Any] = set()
        self.mention(_ENTRIES)
        self.alive(Tensor)

    def module(self, name: Any) -> None:
        """Code of this module was met."""
        if isinstance(name, str) and not library_module(name):
            self.sources.add(name)

    def mention(self, names: tuple[str, ...]) -> None:
        """Some code mentions these names, so members with these names may be used."""
        for name in names:
            if name not in self.mentioned:
                self.mentioned.add(name)
                for kind in self._holders.get(name, ()):
                    self._member(kind, name)

    def alive(self, kind: type) -> None:
        """There are instances of this class, or there may be. It is itself an instance of another."""
        if kind not in self._spaces and not library_class(kind):
            self._walk.watch.view(lambda: kind.__mro__)  # which a line `kind.__bases__ = ...` changes
        for base in (*kind.__mro__, *_of_classes(kind)):
            if base in self._spaces or base is object:
                continue
            self.module(base.__module__)
            space = self._spaces[base] = vars(base)
            self._walk.watch.size(space)
            for name in sorted(space):
                self._holders[name].append(base)
                if name in self.mentioned or (name.startswith("__") and name.endswith("__")):
                    self._member(base, name)

    def described(self, value: Any, path: str) -> str:
        """The text of a function, class, module, or of what wraps one."""
        if isinstance(value, FunctionType):
            return self._function(value, path)
        if isinstance(value, type):
            self.alive(value)
            bases = ", ".join([f"{base.__module__}.{base.__qualname__}" for base in value.__mro__])
            return f"class {bases} of {type(value).__module__}.{type(value).__qualname__}"
        if isinstance(value, MethodType):
            return f"method {self._walk.value(value.__func__, path)} of {self._walk.value(value.__self__, path)}"
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, WRAPPERS):
            if isinstance(value, functools._lru_cache_wrapper):
                self._walk.watch.caches.append(value)
            inner = [self._walk.value(f, path) for f in wrapped(value)]
            return f"{type(value).__qualname__} {inner}"
        holder = getattr(value, "__self__", None)
        of = "" if holder is None or isinstance(holder, (ModuleType, type)) else self._walk.value(holder, path)
        where = getattr(value, "__module__", None)
        self.module(where)
        return f"native {where}.{getattr(value, '__qualname__', type(value).__qualname__)} {of}"

    # -- classes ---------------------------------------------------------------------------------------------------
    def _member(self, base: type, name: str) -> None:
        if (base, name) in self._members or name in _UNUSED:
            return
        if name in _CONSTRUCTION and issubclass(base, nn.Module):
            return  # a model that runs exists already, and creates no other
        self._members.add((base, name))
        value = self._spaces[base][name]
        self._walk.watch.name(self._spaces[base], name, value)
        self._walk.later(lambda: self._tell(base, name, value))

    def _tell(self, base: type, name: str, value: Any) -> None:
        where = f"{base.__module__}.{base.__qualname__}"
        if library_class(base):
            self._library_value(where, name, value)
        else:
            self._walk.lines.append(f"{where}.{name} = {self._walk.value(value, f'{base.__qualname__}.{name}')}")

    # -- functions -------------------------------------------------------------------------------------------------
    def _function(self, function: FunctionType, path: str) -> str:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        if library_function(function):
            self._follow(function)
            told = [(name, value) for name, value in contents(cells) if tells_apart(value)]
            held = [f"{name}: {self._walk.value(value, f'{path}: {name}')}" for name, value in told]
            return f"library {function.__module__}.{function.__qualname__} {held}"
        walk, watch = self._walk, self._walk.watch
        self.module(function.__globals__.get("__name__"))
        watch.function(function)
        digest, names = code_of(function.__code__)
        self.asks_training |= "training" in names
        self.asks_gradients |= "requires_grad" in names
        if _ENVIRONMENT & {*names}:
            read = (*names, *filter(str.isidentifier, _texts_of(function)))
            self._walk.lines.append(f"environment {_environment(read)}")
            watch.view(lambda: _environment(read))
        for cell in cells.values():
            watch.cell(cell)
        if function.__kwdefaults__:
            watch.container(function.__kwdefaults__)
        held = [f"{name}: {walk.value(v, f'{path}: a closure over {name}')}" for name, v in contents(cells)]
        given = walk.value(function.__defaults__, f"{path}: a default")
        named = walk.attributes(function.__kwdefaults__ or {}, f"{path}: a default")
        kept = {k: v for k, v in vars(function).items() if k != "__wrapped__"}
        if kept:
            watch.container(vars(function))
        text = f"function {function.__module__}.{function.__qualname__} {digest} {held} {given} {named}"
        text += f" {walk.attributes(kept, path)} {self._globals(function, names, path)}"
        text += f" {self._imports(function, names, path)}"
        self.mention(names)
        return text

    def _globals(self, function: FunctionType, names: tuple[str, ...], path: str) -> list[str]:
        """What the names that a function mentions stand for in its module."""
        told, space, read = [], function.__globals__, read_as_global(function.__code__)
        for name in names:
            if name in read and name in space:
                value = space[name]
                self._walk.watch.name(space, name, value)
                told.append(f"{name}={self._named(name, value, names, path)}")
        return told

    def _imports(self, function: FunctionType, names: tuple[str, ...], path: str) -> list[str]:
        """What it imports when it is called, of modules that are there."""
        package, texts = str(function.__globals__.get("__package__") or ""), _texts_of(function)
        told: list[str] = []
        for code in codes_of(function.__code__):
            for name, wanted in imports_inside(code, package):
                told += self._imported(name, name if wanted else name.partition(".")[0], wanted or names, names, path)
            for name in named_inside(code, package, texts):
                told += self._imported(name, name, names, names, path)
        return told

    def _imported(self, name: str, given: str, wanted: tuple[str, ...], names: tuple[str, ...], path: str) -> list[str]:
        """Of a module. given: the name of the one that the function gets, which may be a package of it. wanted: what it
        may take from that."""
        module = sys.modules.get(given)
        if library_module(name):
            if module is not None:
                self._library_module(module, names)
            return []
        self._walk.watch.view(lambda: sys.modules.get(name))
        if not isinstance(module, ModuleType):
            return []
        return [f"import {name} {self._attributes(module, wanted, path, set(), names)}"]

    def _named(self, name: str, value: Any, names: tuple[str, ...], path: str) -> str:
        if not isinstance(value, ModuleType):
            return self._walk.value(value, f"{path}: {name}")
        if library_module(value.__name__):
            self._library_module(value, names)
            return f"module {value.__name__}"
        return f"module {value.__name__} {self._attributes(value, names, path, set())}"

    def _attributes(
        self, module: ModuleType, names: tuple[str, ...], path: str, seen: set[int], inner: tuple[str, ...] = ()
    ) -> list[str]:
        """What a function may take from a module that it mentions. inner: of modules in that, if those are others."""
        seen.add(id(module))
        space, told = vars(module), []
        for name in (*names, "__getattr__"):  # which finds names that are not there
            value = space.get(name, self)
            if value is self or id(value) in seen:
                continue
            self._walk.watch.name(space, name, value)
            if isinstance(value, ModuleType) and not library_module(value.__name__):
                told.append(f"{name}: {self._attributes(value, inner or names, path, seen)}")
            else:
                told.append(f"{name}={self._named(name, value, inner or names, path)}")
        return told

    # -- libraries -------------------------------------------------------------------------------------------------
    def _library_module(self, module: ModuleType, names: tuple[str, ...]) -> None:
        if (id(module), names) in self._followed:
            return
        self._followed.add((id(module), names))
        space = vars(module)
        for name in names:
            value = space.get(name)
            if isinstance(value, ModuleType):
                if library_module(value.__name__):
                    self._library_module(value, names)
            elif callable(value):
                self._walk.watch.name(space, name, value)
                self._library_value(module.__name__, name, value)

    def _library_value(self, where: str, name: str, value: Any) -> None:
        """Something under a name of a library. What the library put there itself needs no text."""
        if ours(value) or getattr(value, "__name__", name) != name:
            self._walk.lines.append(f"{where}.{name} = {self._walk.value(value, f'{where}.{name}')}")
        for function in (value, *wrapped(value)):
            if isinstance(function, FunctionType):
                self._follow(function)

    def _follow(self, function: FunctionType) -> None:
        """Look up the names that PyTorch's own layers use: someone may have put something else there."""
        if not str(function.__module__).startswith("torch.nn.") or function in self._followed:
            return
        self._followed.add(function)
        self._walk.later(lambda: self._look_up(function.__globals__, code_of(function.__code__)[1]))

    def _look_up(self, space: dict[str, Any], names: tuple[str, ...]) -> None:
        self.mention(names)
        for name in names:
            value = space.get(name)
            if isinstance(value, ModuleType):
                if library_module(value.__name__):
                    self._library_module(value, names)
            elif isinstance(value, (FunctionType, BuiltinFunctionType)):
                self._walk.watch.name(space, name, value)
                self._library_value(str(space.get("__name__")), name, value)


def _of_classes(kind: type) -> tuple[type, ...]:
    """The class that a class is an instance of, where somebody wrote it in Python, and its bases."""
    above: type = type(kind)
    written = isinstance(vars(above).get("__module__"), str)  # Cython's do not say
    return above.__mro__ if written and not library_class(above) else ()


def _texts_of(function: FunctionType) -> tuple[str, ...]:
    """Strings that it finds under names of its module, and has as defaults of arguments."""
    space, given = function.__globals__, (function.__defaults__ or (), (function.__kwdefaults__ or {}).values())
    found = (*(space.get(name) for name in sorted(read_as_global(function.__code__))), *chain(*given))
    return tuple(text for text in found if type(text) is str)


def _environment(names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Variables of the environment that code may read: those of whose names it has the text."""
    return [(name, os.environ[name]) for name in sorted({*names}) if name in os.environ]
