"""A digest of what a live module computes, and a quick test whether that has changed.

Two modules of equal digests compute the same function of their weights (by name) and inputs. The digest covers, for
every part of the module: its class with the code of its methods and the sources, every attribute, what objects in
attributes hold, hooks, and types, shapes and strides of its tensors. It does not cover the values of weights, nor what
changes no result without gradients. Globals, closures and functions of libraries that somebody replaces are not looked
at: ``TiledVAE.refresh`` is for those. Writes through ``.data`` or NumPy are found by checksums (see ``weights``).
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from operator import attrgetter
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, EllipsisType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tvae.pipeline.engine.capture.scalar_weights import is_scalar
from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.reference import BLENDED
from tvae.pipeline.session.identity.model_state import (
    HOOKS,
    REGISTRIES,
    copy_container,
    derived_names,
    state_containers,
)
from tvae.pipeline.session.identity.sources import is_library, source_digest, versions
from tvae.pipeline.session.tensor_digest import tensor_digest

__all__ = ["NO_RESULT", "Identity", "identity_of"]

_log = logging.getLogger("tvae")
NO_RESULT = {
    *(*REGISTRIES, *HOOKS, "training", "_non_persistent_buffers_set", "_forward_hooks_always_called"),
    *("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs"),
    *("_backward_pre_hooks", "_backward_hooks", "_is_full_backward_hook", "_state_dict_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_compiled_call_impl", "_is_torch_compile"),
}
"""Attributes of every module that are described in another way, or that no result without gradients depends on."""
_PLAIN = (
    *(int, float, complex, bool, str, bytes, type(None), EllipsisType, range),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)
_SMALL = 1 << 16
"""Bytes of a constant that are compared before every call, in case somebody writes to it through NumPy."""
_WRAPPERS = (FunctionType, functools._lru_cache_wrapper)
_HEAP_TYPE = 1 << 9
"""The flag of classes that are written in Python."""


class Identity:
    """A digest of a module at one moment.

    Attributes:
        digest: equal for modules that compute the same.
        scalars: whether the digest covers the values of weights of one number.
        portable: whether the digest is the same in every process. Otherwise it names objects by their ids, is valid as
            long as this identity exists, and nothing may be saved under it.
        why: what has no digest that is the same in every process.
    """

    def __init__(self, module: nn.Module, ignored: Collection[str], *, scalars: bool = False) -> None:
        self.scalars = scalars
        parts = module.named_modules()
        self._trained = {name: type(part).__name__ for name, part in parts if part.training and _learns(part)}
        weights = [*module.named_parameters(), *module.named_buffers()]
        self._sparse = {name: weight.layout for name, weight in weights if weight.layout is not torch.strided}
        description = _Description(module, ignored, scalars=scalars)
        sources = source_digest(description.python_modules)
        self.why = description.why or ("" if sources else "a class without a source file")
        self.portable = not self.why
        self._held, self._watch = description.held, _Watch(module, description)
        doc = [versions(), sources, None if self.portable else os.getpid()]
        text = "\n".join([json.dumps(doc, sort_keys=True), *description.lines])
        self.digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()

    def unchanged(self) -> bool:
        """Return whether nothing that the digest covers has changed, and no weight was written to. Quick."""
        return self._watch.unchanged()

    def evaluated(self) -> Identity:
        """Return itself. Raises UsageError for layers that behave otherwise in training, and for sparse weights."""
        for name, kind in self._trained.items():
            raise UsageError(f"{kind} '{name}' is in training, in which its results differ: call eval() on the VAE")
        for name, layout in self._sparse.items():
            raise UsageError(
                f"the VAE's '{name}' is {layout}, and tvae computes with dense weights: call to_dense() on it"
            )
        return self


def identity_of(module: nn.Module, ignored: Collection[str] = BLENDED, *, scalars: bool = False) -> Identity:
    """Return what the module computes now.

    Args:
        ignored: attributes of the module itself that do not matter.
        scalars: whether the values of weights of one number matter.
    """
    return Identity(module, ignored, scalars=scalars)


def _learns(part: nn.Module) -> bool:
    """Return whether a layer of PyTorch gives other results in training."""
    if isinstance(part, nn.modules.dropout._DropoutNd | nn.AlphaDropout | nn.FeatureAlphaDropout):
        return part.p > 0
    if any(type(hook).__name__ == "SpectralNorm" for hook in part._forward_pre_hooks.values()):
        return True  # each call brings it nearer to the weight's norm
    statistics = isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats
    return statistics or isinstance(part, nn.RReLU) or type(part).__name__ == "_SpectralNorm"


class _Description:
    """Writes down everything that decides what a module computes, as lines of text."""

    def __init__(self, root: nn.Module, ignored: Collection[str], *, scalars: bool) -> None:
        self.lines: list[str] = []
        self.why = ""
        self.held: list[Any] = []
        self.python_modules: set[str] = set()
        self.tensors: dict[int, Tensor] = {}
        self.views: list[Callable[[], Any]] = []
        self.left_out: dict[int, set[str]] = {}
        self._scalars, self._asks_training = scalars, False
        self._tree = {id(part): name for name, part in root.named_modules()}
        self._numbers: dict[int, int] = {}
        self._classes: dict[type, int] = {}
        for name, part in root.named_modules(remove_duplicate=False):
            if self._tree[id(part)] != name:
                self.lines.append(f"{name} is {self._tree[id(part)]}")
                continue
            left_out = derived_names(part) | (set(ignored) | _moving_hooks(part) if part is root else set())
            self.left_out[id(vars(part))] = left_out
            self.lines.append(self._module(part, name, left_out))
        if self._asks_training:
            self.lines.append(f"in training: {[name for name, part in root.named_modules() if part.training]}")

    def _module(self, part: nn.Module, path: str, left_out: set[str]) -> str:
        if isinstance(part, torch.jit.ScriptModule):
            return self._opaque(part, path, "a scripted module")
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is not None and is_lazy(tensor):
                raise UsageError(f"'{path}{'.' if path else ''}{name}' has no values yet: call the wrapped model once")
        state = vars(part)
        names = sorted(state.keys() - NO_RESULT - left_out)
        lines = [path, self._class(type(part))]
        lines += [f"{name}={self.value(state[name], f'{path}.{name}')}" for name in names]
        for tensors in (part._parameters, part._buffers):
            lines += [f"{name}: {self._weight(t, f'{path}.{name}')}" for name, t in sorted(tensors.items())]
        lines.append(f"children {[*part._modules]}")
        for kind in HOOKS:
            flags = [state.get(f"{kind}_with_kwargs", {}), state.get(f"{kind}_always_called", {})]
            hooks = [(self.value(hook, f"{path}.{kind}"), *(k in f for f in flags)) for k, hook in state[kind].items()]
            lines.append(f"hooks {hooks}")
        return " | ".join(lines)

    def value(self, value: Any, path: str) -> str:
        """Describe a value that an attribute holds."""
        kind = type(value)
        if kind in _PLAIN:
            return f"{kind.__name__} {value!r}"
        if isinstance(value, Enum):
            return f"{self._class(kind)} {value.name}"
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, ModuleType):
            return f"Python module {value.__name__}"
        if id(value) in self._numbers:
            return f"#{self._numbers[id(value)]}"
        self._numbers[id(value)] = len(self._numbers)
        self.held.append(value)  # so that no id comes twice
        if isinstance(value, (FunctionType, BuiltinFunctionType, MethodType, functools.partial)):
            return self._function(value, path)
        if isinstance(value, nn.Module):
            return self._other_module(value, path)
        if isinstance(value, Tensor):
            return self._constant(value, path)
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            self.views.append(lambda: (value.shape, value.tobytes()))
            return f"{value.dtype.str} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
        if isinstance(value, Mapping):
            # keys of diffusers' configuration that begin with "_" are notes
            notes = kind.__name__ == "FrozenDict"
            items = [(k, v) for k, v in value.items() if not (notes and str(k).startswith("_"))]
            return f"{kind.__name__} {[(self.value(k, path), self.value(v, f'{path}[{k!r}]')) for k, v in items]}"
        if isinstance(value, (list, tuple, deque)):
            return f"{kind.__name__} {[self.value(v, f'{path}[{n}]') for n, v in enumerate(value)]}"
        if isinstance(value, (set, frozenset)):
            return f"{kind.__name__} {sorted(self.value(v, path) for v in value)}"
        if isinstance(value, (PurePath, torch.finfo, torch.iinfo, np.dtype, slice)):
            return f"{kind.__name__} {value!r}"
        state = getattr(value, "__dict__", None)
        if is_library(kind.__module__) and kind.__name__ in ("Logger", "lock", "RLock", "_Environ"):
            return kind.__name__
        native = any(base is not object and not base.__flags__ & _HEAP_TYPE for base in kind.__mro__)
        if native or not isinstance(state, dict):
            return self._opaque(value, path)  # it holds something that Python does not see
        return f"{self._class(kind)} {[(name, self.value(state[name], f'{path}.{name}')) for name in sorted(state)]}"

    def _other_module(self, value: nn.Module, path: str) -> str:
        if id(value) in self._tree:
            return f"module {self._tree[id(value)]}"
        if any(True for _ in value.parameters()):
            return self._opaque(value, path, f"weights of a {type(value).__qualname__} that is no part of the model")
        return self._module(value, path, derived_names(value)) + str(
            [self.value(child, f"{path}.{name}") for name, child in value.named_children()]
        )

    def _opaque(self, value: Any, path: str, what: str = "") -> str:
        """Describe a value by its id alone."""
        self.why = self.why or f"{path or 'the model'}: {what or f'an object of class {type(value).__qualname__}'}"
        self.held.append(value)
        return f"object {id(value)}"

    def _class(self, kind: type) -> str:
        """Describe a class by its name and bases, and by the code of methods from outside the libraries."""
        name = f"class {kind.__module__}.{kind.__qualname__}"
        if kind in self._classes:
            return f"{name} #{self._classes[kind]}"
        self._classes[kind] = len(self._classes)
        bases = [base for base in kind.__mro__ if not is_library(base.__module__)]
        self.python_modules |= {base.__module__ for base in bases}
        functions = [(method, function) for base in bases for method, function in _functions(base)]
        self._asks_training |= any("training" in function.__code__.co_names for _, function in functions)
        code = [(method, self._code(function, name)) for method, function in functions]
        return f"{name} {[f'{base.__module__}.{base.__qualname__}' for base in kind.__mro__]} {code}"

    def _function(self, value: Any, path: str) -> str:
        if isinstance(value, functools.partial):
            held = [self.value(v, path) for v in (*value.args, *value.keywords.values())]
            return f"partial {self.value(value.func, path)} {held} {[*value.keywords]}"
        if isinstance(value, MethodType):
            return f"method {self._function(value.__func__, path)} of {self.value(value.__self__, path)}"
        if isinstance(value, BuiltinFunctionType):
            return f"builtin {value.__module__}.{value.__qualname__}"
        self.python_modules.add(str(value.__module__))
        return f"function {value.__module__}.{value.__qualname__} {self._code(value, path)}"

    def _code(self, function: FunctionType, path: str) -> str:
        """Describe what a function does, with its defaults and what its closure holds now."""
        held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for cell in function.__closure__ or ():
            try:
                held.append(cell.cell_contents)
            except ValueError:  # not filled yet
                held.append("empty")
        return f"{_code_digest(function.__code__)} {[self.value(part, path) for part in held]}"

    def _tensor(self, value: Tensor, path: str) -> str:
        self.tensors[id(value)] = value
        if type(value) not in (Tensor, nn.Parameter, nn.Buffer) or value.layout is not torch.strided:
            return self._opaque(value, path, f"a tensor of class {type(value).__qualname__}")
        return f"tensor {tuple(value.shape)} {value.stride()} {value.dtype}"

    def _weight(self, value: Tensor | None, path: str) -> str:
        """Describe a parameter or buffer, with its value where that counts."""
        if value is None:
            return "None"
        if id(value) in self._numbers:
            return f"#{self._numbers[id(value)]}"
        self._numbers[id(value)] = len(self._numbers)
        text = self._tensor(value, path)
        if not self._scalars or not is_scalar(value) or text.startswith("object"):
            return text
        self.views.append(lambda: _bytes(value))
        return f"{text} {tensor_digest(value)}"

    def _constant(self, value: Tensor, path: str) -> str:
        """Describe a tensor that is neither parameter nor buffer: its values are part of what is computed."""
        text = self._tensor(value, path)
        if value.is_meta or text.startswith("object"):
            return text
        if value.device.type == "cpu" and value.nbytes <= _SMALL:
            self.views.append(lambda: _bytes(value))
        return f"{text} {tensor_digest(value)}"


class _Watch:
    """Answers within microseconds, before every call, whether a model's state is as it was.

    Containers are compared with copies of themselves in one comparison that runs in C and stops at the identity of what
    they hold.
    """

    def __init__(self, module: nn.Module, description: _Description) -> None:
        # a container with names that do not matter is compared without them
        partial = {key: names for key, names in description.left_out.items() if names}
        containers = [live for _, live in state_containers(module, description.left_out)]
        self._live = [live for live in containers if id(live) not in partial]
        self._copies = [copy_container(live) for live in self._live]
        self._partial = [(live, partial[id(live)]) for live in containers if id(live) in partial]
        self._partial_copies = self._partial_contents()
        self._slots = [
            (live, key, value)
            for live in self._live
            for key, value in (live.items() if isinstance(live, dict) else enumerate(live))
            if isinstance(value, Tensor)  # a tensor of one element equals another by its value
        ]
        self._modules = [*module.modules()]
        self._orders = [part._modules for part in self._modules if len(part._modules) > 1]
        tensors = [*description.tensors.values()]
        self._placed = [t for t in tensors if t.layout is torch.strided and not t.is_meta]
        self._unplaced = [t for t in tensors if t.layout is not torch.strided or t.is_meta]
        self._counted = [t for t in tensors if not t.is_inference()]  # the others count no writes
        self._views = [(view, view()) for view in description.views]
        self._facts = self._tensor_facts()

    def unchanged(self) -> bool:
        try:
            return (
                self._live == self._copies
                and all(live[key] is value for live, key, value in self._slots)
                and self._partial_contents() == self._partial_copies
                and self._tensor_facts() == self._facts
                and all(view() == seen for view, seen in self._views)
            )
        except Exception as error:  # a name is gone, or a value cannot be compared: a change, too
            _log.debug("a model has changed: %s", error)
            return False

    def _partial_contents(self) -> list[dict[str, Any]]:
        return [{key: value for key, value in live.items() if key not in names} for live, names in self._partial]

    def _tensor_facts(self) -> list[list[Any]]:
        return [
            [*map(Tensor.data_ptr, self._placed)],
            [*map(Tensor.stride, self._placed)],
            [*map(attrgetter("shape"), self._placed)],
            [*map(attrgetter("_version"), self._counted)],
            [*map(attrgetter("dtype"), self._unplaced)],
            [*map(type, self._modules)],
            [[*order] for order in self._orders],
        ]


def _moving_hooks(module: nn.Module) -> set[str]:
    """Return attributes that accelerate put into a module to bring its weights to the device."""
    state = vars(module)
    hook = state.get("_hf_hook")
    if hook is None or not _only_moves(hook):
        return set()
    names = {"_hf_hook"}
    forward = state.get("forward")
    if isinstance(forward, functools.partial) and forward.func.__module__ == "accelerate.hooks":
        names.add("forward")
    before = state.get("_old_forward")  # a forward that someone patched before counts under this name
    if isinstance(before, MethodType) and before.__func__ is getattr(type(before.__self__), "forward", None):
        names.add("_old_forward")
    return names


def _only_moves(hook: Any) -> bool:
    kind = type(hook)
    if kind.__module__ != "accelerate.hooks":
        return False
    if kind.__name__ == "SequentialHook":
        return all(map(_only_moves, hook.hooks))
    return kind.__name__ in ("AlignDevicesHook", "CpuOffload")


def _functions(kind: type) -> list[tuple[str, FunctionType]]:
    """Return the functions of a class by name, those of properties and other descriptors, too."""
    functions = []
    for name, value in sorted(vars(kind).items()):
        parts = (value.fget, value.fset) if isinstance(value, property) else (getattr(value, "__func__", value),)
        for part in parts:
            function = getattr(part, "__wrapped__", part) if isinstance(part, _WRAPPERS) else part
            if isinstance(function, FunctionType):
                functions.append((name, function))
    return functions


@functools.lru_cache(maxsize=8192)
def _code_digest(code: CodeType) -> str:
    """Return a digest of what code does, the same in every process."""
    constants = [_constant(value) for value in code.co_consts]
    parts = (code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_flags, constants)
    return hashlib.sha256(repr(parts).encode(errors="surrogatepass")).hexdigest()


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _code_digest(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return f"{sorted(map(_constant, value))}" if isinstance(value, frozenset) else repr(value)


def _bytes(value: Tensor) -> bytes:
    raw: bytes = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return raw
