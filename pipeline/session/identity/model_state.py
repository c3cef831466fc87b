"""Find the containers and tensors that hold a model's state, and restore them after a capture.

A capture calls the model with placeholder tensors. If the model keeps one (``self.previous = x``), it must be removed
afterwards. State is what attributes of modules hold: plain values, tensors, containers, and objects of classes outside
the libraries; and the containers in the globals and classes of the model's own Python modules, such as a table of
positions by size.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from tvae.pipeline.session.identity.sources import is_library

__all__ = ["HOOKS", "REGISTRIES", "Snapshot", "changed_caches", "copy_container", "derived_names", "state_containers"]

REGISTRIES = ("_parameters", "_buffers", "_modules")
HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_CONTAINERS = (dict, list, set, deque)
_NORMALISERS = ("torch.nn.utils.weight_norm", "torch.nn.utils.spectral_norm")
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_MISSING = object()


def derived_names(module: nn.Module) -> set[str]:
    """Return attributes of a module that each call computes again from its parameters."""
    kind = type(module)
    if (kind.__module__, kind.__name__) == ("torch._dynamo.eval_frame", "OptimizedModule"):
        return {*vars(module)}  # it computes what the module in it computes
    hooks = vars(module).get("_forward_pre_hooks") or {}
    return {hook.name for hook in hooks.values() if type(hook).__module__ in _NORMALISERS}


def state_containers(root: nn.Module, left_out: Mapping[int, Collection[str]]) -> Iterator[tuple[str, Any]]:
    """Yield every dictionary, list, set and deque that holds state of a model, with its path, each once.

    The attributes of a module, or of an object, are a dictionary. What it holds under a name that is left out (by the
    dictionary's id) is not looked at.
    """
    seen: dict[int, Any] = {}
    for name, part in root.named_modules():
        yield from _containers_in(part, name, left_out, seen)


def _containers_in(
    value: Any, path: str, left_out: Mapping[int, Collection[str]], seen: dict[int, Any]
) -> Iterator[tuple[str, Any]]:
    if id(value) in seen or isinstance(value, (str, bytes, int, float, type, type(None), torch.dtype)):
        return
    seen[id(value)] = value  # kept alive, so that no id comes twice
    if isinstance(value, _CONTAINERS):
        yield path, value
    if isinstance(value, dict):
        names = left_out.get(id(value), ())
        for key, held in dict.items(value):
            if key not in names:
                yield from _containers_in(held, path if key in REGISTRIES else _join(path, key), left_out, seen)
    elif isinstance(value, (list, tuple, deque)):
        for n, held in enumerate(value):
            yield from _containers_in(held, f"{path}[{n}]", left_out, seen)
    elif isinstance(value, nn.Module) or _has_state(value):
        yield from _containers_in(vars(value), path, left_out, seen)


def changed_caches(before: dict[int, int] | None = None) -> dict[int, int]:
    """Return how often each function under ``lru_cache`` has computed something, by its id.

    With counts from an earlier call, empty the caches that have computed something since: a capture leaves placeholder
    tensors in them.
    """
    counts: dict[int, int] = {}
    for cache in [value for value in gc.get_objects() if type(value) is functools._lru_cache_wrapper]:
        if str(cache.__module__).partition(".")[0] in ("torch", "sympy", "tvae") or is_library(str(cache.__module__)):
            continue
        if before is not None and cache.cache_info().misses != before.get(id(cache), 0):
            cache.cache_clear()
        counts[id(cache)] = cache.cache_info().misses
    return counts


class _Container(NamedTuple):
    path: str
    live: Any
    before: Any
    derived: frozenset[str]
    by_name: bool
    registry: bool


class _Saved(NamedTuple):
    """A tensor, its memory, the count of its writes, and a copy of its values unless it is a parameter."""

    path: str
    tensor: Tensor
    memory: Tensor
    version: int
    values: Tensor | None


class Snapshot:
    """The state of a module at one moment: what has changed since, by name, and how to restore it.

    A value that was exchanged for an equal one is no change. A parameter that was written to in place is named, but its
    values are not restored: there is no copy of them.

    Args:
        in_trace: taken inside of a trace, where tensors have no memory and registries belong to the exporter.
        after_call: taken after a call in that trace; the next may leave tensors like those that it left.
    """

    def __init__(self, module: nn.Module, *, in_trace: bool = False, after_call: bool = False) -> None:
        self._in_trace, self._after_call = in_trace, after_call
        derived = {id(vars(part)): frozenset(derived_names(part)) for part in module.modules()}
        registries = {id(vars(part).get(name)) for part in module.modules() for name in REGISTRIES}
        attributes = {id(vars(part)) for part in module.modules()}
        self._containers = [
            _Container(
                *(path, live, copy_container(live), derived.get(id(live), frozenset())),
                by_name=id(live) in attributes | registries,
                registry=id(live) in registries,
            )
            for path, live in (*state_containers(module, {}), *_global_containers(module))
        ]
        self._tensors = [] if in_trace else [*self._saved_tensors()]

    def _saved_tensors(self) -> Iterator[_Saved]:
        seen = set[int]()
        for container in self._containers:
            held = container.before.items() if isinstance(container.before, dict) else enumerate(container.before)
            for key, value in held:
                if isinstance(value, Tensor) and id(value) not in seen:
                    seen.add(id(value))
                    values = None if isinstance(value, nn.Parameter) else value.detach().clone()
                    yield _Saved(_join(container.path, key), value, value.detach(), _version(value), values)

    def changed(self) -> list[str]:
        """Return the names of what has changed since, such as "decoder.previous"."""
        names = {name for container in self._containers for name in self._differences(container)}
        return sorted(names | {saved.path for saved in self._tensors if _was_written(saved)})

    def restore(self) -> None:
        """Restore everything but the values of parameters."""
        for container in self._containers:
            if not (self._in_trace and container.registry):
                _restore(container.live, container.before)
        with torch.no_grad():
            for saved in self._tensors:
                if _was_written(saved):
                    saved.tensor.data = saved.memory
                    if saved.values is not None:
                        saved.memory.copy_(saved.values)

    def _differences(self, container: _Container) -> Iterator[str]:
        live, before = container.live, container.before
        if not container.by_name:
            if not self._equal_contents(before, live):
                yield container.path
            return
        for key in {**before, **live}:
            if key in (*REGISTRIES, *container.derived):
                continue
            if not self._equal(before.get(key, _MISSING), live.get(key, _MISSING)):
                yield _join(container.path, key)

    def _equal(self, before: Any, now: Any) -> bool:
        if before is now:
            return True
        if isinstance(before, FakeTensor) and isinstance(now, FakeTensor):
            return self._after_call and (before.shape, before.dtype) == (now.shape, now.dtype)
        if type(before) is not type(now) or isinstance(before, Tensor):
            return False
        if isinstance(before, _SYMBOLIC):
            return bool(before.node.expr == now.node.expr)
        if isinstance(before, (tuple, *_CONTAINERS)):
            return self._equal_contents(before, now)
        return isinstance(before, (str, bytes, int, float, complex, torch.dtype, torch.device)) and before == now

    def _equal_contents(self, before: Any, now: Any) -> bool:
        if len(before) != len(now) or isinstance(before, set):
            return bool(before == now)
        if isinstance(before, dict):
            return all(key in now and self._equal(value, now[key]) for key, value in dict.items(before))
        return all(self._equal(a, b) for a, b in zip(before, now, strict=True))


def _global_containers(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield containers in the globals of the model's own Python modules, and in its own classes."""
    kinds = {kind for part in module.modules() for kind in type(part).__mro__ if not is_library(kind.__module__)}
    spaces: dict[str, Mapping[str, Any]] = {
        name: vars(sys.modules[name]) for name in {k.__module__ for k in kinds} if name in sys.modules
    }
    spaces |= {f"{kind.__module__}.{kind.__qualname__}": vars(kind) for kind in kinds}
    for name, space in spaces.items():
        for key, value in [*space.items()]:
            if type(value) in (dict, list, set, OrderedDict, deque) and not key.startswith("__"):
                yield f"{name}.{key}", value


def _has_state(value: Any) -> bool:
    return isinstance(getattr(value, "__dict__", None), dict) and not is_library(type(value).__module__)


def copy_container(container: Any) -> Any:
    """Copy a container by the methods of Python's own class: a derived class may forbid or change them."""
    if isinstance(container, dict):
        return dict(dict.items(container))
    return next(kind(container) for kind in (set, deque, list) if isinstance(container, kind))


def _restore(live: Any, before: Any) -> None:
    """Write what a container held where it differs: another thread may be reading it."""
    if isinstance(live, dict):
        base: Any = OrderedDict if isinstance(live, OrderedDict) else dict
        for key in [key for key in dict.keys(live) if key not in before]:
            base.pop(live, key)
        for key, value in before.items():
            if dict.get(live, key, _MISSING) is not value:
                base.__setitem__(live, key, value)
        if [*map(id, dict.keys(live))] != [*map(id, before)]:  # the order of modules is the order of calls
            for key, value in before.items():
                base.pop(live, key)
                base.__setitem__(live, key, value)
    elif isinstance(live, set):
        set.intersection_update(live, before)
        set.update(live, before)
    elif [*map(id, live)] != [*map(id, before)]:
        live.clear()
        live.extend(before)


def _was_written(saved: _Saved) -> bool:
    same = saved.tensor.data_ptr() == saved.memory.data_ptr() and saved.tensor.shape == saved.memory.shape
    return not same or saved.tensor.dtype != saved.memory.dtype or _version(saved.tensor) != saved.version


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _join(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)
