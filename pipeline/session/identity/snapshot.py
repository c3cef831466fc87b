"""The state of a module before a capture: what was written since, by name, and how to restore it.

A capture calls the model with placeholder tensors. If the model keeps one (``self.prev = x``), it must be removed
afterwards. Covered are the attributes of every part, the containers and objects they hold, registries, hooks, and
tensors; and what else the model's code may write to. A value that was exchanged for an equal one is no change. A
parameter whose values were written in place is named, but its values are not restored: there is no copy of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from tvae.pipeline.session.identity.code import plain
from tvae.pipeline.session.identity.containers import CONTAINERS, base_of, copied, entries, members
from tvae.pipeline.session.identity.hidden_state import HiddenState, hidden_state
from tvae.pipeline.session.identity.library import library_class
from tvae.pipeline.session.identity.outside import Outside
from tvae.pipeline.session.identity.tree import FORWARD_HOOKS, REGISTRIES, derived

__all__ = ["Snapshot"]

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_MISSING = object()


class _Held(NamedTuple):
    """A container, and what it held. inside: its keys are told as parts of the path. expected: keys that may change.
    partly: no other keys than those that it held are of interest."""

    path: str
    live: Any
    before: Any
    inside: bool
    expected: frozenset[str] = frozenset()
    partly: bool = False
    registry: bool = False


class _Kept(NamedTuple):
    """A tensor, the memory it had, the count of its writes, and a copy of its values where one was made."""

    path: str
    tensor: Tensor
    memory: Tensor
    version: int
    values: Tensor | None


class Snapshot:
    """See the module's docstring. traced: inside of a trace, where tensors have no memory to look at; registries are
    the exporter's then, and are not restored. called: after a call in that trace; the next may leave tensors like
    those that it left."""

    def __init__(
        self, module: nn.Module, outside: Outside | None = None, *, traced: bool = False, called: bool = False
    ) -> None:
        self._traced, self._called = traced, called
        self._held: list[_Held] = []
        self._kept: list[_Kept] = []
        self._hidden: dict[int, tuple[str, HiddenState, Any]] = {}
        self._seen: dict[int, Any] = {}  # kept alive, so that no id comes twice
        self._look(module, "")
        if outside is not None:
            for space, names in outside.globals:
                now = {name: space[name] for name in names if name in space}
                self._held.append(_Held(str(space.get("__name__", "")), space, now, True, partly=True))
            for container in outside.containers:
                self._look(container, f"a {type(container).__name__} outside of it")
            for value in outside.changing:
                self._look_inside(value, f"a {type(value).__name__} outside of it")

    def changed(self) -> list[str]:
        """Names of what has changed since, such as ``decoder.prev``."""
        names = {name for held in self._held for name in self._differing(held)}
        names |= {path for path, state, before in self._hidden.values() if state.look() != before}
        return sorted(names | {kept.path for kept in self._kept if _written(kept)})

    def restore(self) -> None:
        """Everything as it was."""
        for held in self._held:
            if held.partly:
                held.live.update({k: v for k, v in held.before.items() if held.live.get(k, _MISSING) is not v})
            elif not (self._traced and held.registry):
                _put_back(held.live, held.before)
        with torch.no_grad():
            for kept in self._kept:
                if _written(kept):
                    kept.tensor.data = kept.memory
                    if kept.values is not None:
                        kept.memory.copy_(kept.values)
        for _, state, before in self._hidden.values():
            if state.restore is not None and state.look() != before:
                state.restore()

    # -- looking ---------------------------------------------------------------------------------------------------
    def _look(self, value: Any, path: str) -> None:
        if plain(value) is not None or id(value) in self._seen:
            return
        self._look_inside(value, path)
        if isinstance(value, tuple):
            for n, v in enumerate(value):
                self._look(v, f"{path}[{n}]")
        elif isinstance(value, Tensor):
            self._keep(value, path)
        elif isinstance(value, nn.Module):
            self._look_at_module(value, path)
        else:
            if isinstance(value, CONTAINERS):
                self._hold(_Held(path, value, copied(value), False))
            self._look_at_attributes(value, path)

    def _look_at_attributes(self, value: Any, path: str) -> None:
        if isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, type) and _is_object(value):
            self._seen[id(value)] = value
            self._hold(_Held(path, vars(value), vars(value).copy(), True))

    def _look_inside(self, value: Any, path: str) -> None:
        if id(value) not in self._hidden and (state := hidden_state(value)) is not None:
            self._hidden[id(value)] = path, state, state.look()  # which keep it alive

    def _look_at_module(self, part: nn.Module, path: str) -> None:
        self._seen[id(part)] = part
        state = vars(part)
        apart = (*REGISTRIES, *FORWARD_HOOKS)
        self._hold(_Held(path, state, state.copy(), True, frozenset(derived(part))), apart)
        for name in apart:
            container = state.get(name)
            if isinstance(container, dict):
                inside = name in REGISTRIES
                where = path if inside else _join(path, name)
                self._hold(_Held(where, container, container.copy(), inside, registry=inside))

    def _hold(self, held: _Held, apart: tuple[str, ...] = ()) -> None:
        self._held.append(held)
        self._seen[id(held.live)] = held.live
        entries = held.before.items() if isinstance(held.before, dict) else enumerate(held.before)
        for key, value in entries:
            if not (held.inside and key in apart):
                self._look(value, _join(held.path, key) if held.inside else f"{held.path}[{key!r}]")

    def _keep(self, tensor: Tensor, path: str) -> None:
        self._seen[id(tensor)] = tensor
        if self._traced:
            return
        values = None if isinstance(tensor, nn.Parameter) else tensor.detach().clone()
        self._kept.append(_Kept(path, tensor, tensor.detach(), _version(tensor), values))

    # -- comparing -------------------------------------------------------------------------------------------------
    def _differing(self, held: _Held) -> Iterator[str]:
        live, before = held.live, held.before
        if not held.inside:
            if not self._alike(before, live):
                yield held.path
            return
        for key in before if held.partly else {**before, **live}:
            if key not in held.expected and not self._same(before.get(key, _MISSING), live.get(key, _MISSING)):
                yield _join(held.path, key)

    def _same(self, before: Any, now: Any) -> bool:
        """Is it the same thing, or an equal one?"""
        if before is now:
            return True
        text = plain(before)
        if text is not None:
            return text == plain(now)
        if self._called and isinstance(before, FakeTensor) and isinstance(now, FakeTensor):
            return (before.shape, before.dtype) == (now.shape, now.dtype)
        if isinstance(before, _NUMBERS) and type(before) is type(now):  # sizes that a call noted down
            return bool(before.node.expr == now.node.expr)
        if type(before) is not type(now) or not isinstance(before, (tuple, *CONTAINERS)):
            return False
        return self._alike(before, now)

    def _alike(self, before: Any, now: Any) -> bool:
        """Do two containers hold the same?"""
        before, now = copied(before), copied(now)
        if len(before) != len(now):
            return False
        if isinstance(before, set):
            return before == now
        if isinstance(before, dict):
            return all(key in now and self._same(value, now[key]) for key, value in before.items())
        return all(self._same(a, b) for a, b in zip(before, now, strict=True))


def _is_object(value: Any) -> bool:
    """Does it hold state that a model's own code writes? Functions, modules and classes are no such thing."""
    return not library_class(type(value))


def _written(kept: _Kept) -> bool:
    same = kept.tensor.data_ptr() == kept.memory.data_ptr() and kept.tensor.shape == kept.memory.shape
    return not same or kept.tensor.dtype != kept.memory.dtype or _version(kept.tensor) != kept.version


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _put_back(live: Any, before: Any) -> None:
    """What a container held, written only where it differs: another thread may be reading it.
    A class derived from Python's own may forbid writes, as diffusers' configuration does: the one underneath writes."""
    base = base_of(type(live))
    if isinstance(live, dict):
        now = dict(entries(live))
        for key in [key for key in now if key not in before]:
            base.pop(live, key, None)
        for key in [key for key, value in before.items() if now.get(key, _MISSING) is not value]:
            base.__setitem__(live, key, before[key])
    if [*map(id, members(live))] == [*map(id, members(before))]:
        return
    base.clear(live)
    if isinstance(live, dict):
        for key, value in before.items():
            base.__setitem__(live, key, value)
    else:
        (base.update if isinstance(live, set) else base.extend)(live, before)


def _join(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)
