"""Calls of a module that the exporter has followed before: it follows each of them once.

A model that goes over a clip in chunks calls its decoder for every chunk, from the third on with arguments alike, and
in it blocks that are built alike. What the first of such calls wrote into the graph is written again, with this call's
tensors and weights in the place of that one's. Arguments that a call changes (a list of caches) are changed again.
Models that call nothing of some size twice are followed as ever: to tell calls apart would cost more than it saves.

A call is known where everything that it can depend on is the same: the shapes of its tensors and of its modules'
weights, and which of them are one; all other arguments; all else that its modules hold. Whatever goes beyond that is
followed as ever: arguments of other kinds, modules that change themselves, tensors from elsewhere.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tvae.pipeline.engine.capture.in_thread import instead
from tvae.pipeline.engine.capture.shortcuts.known_shapes import NoCacheKey, copy_of, key_of

__all__ = ["known_calls"]

_LEAST_MODULES = 16
"""Of a module that is called again where a clip goes by in chunks; of one that is given a list of caches, which take a
few milliseconds to tell."""


_NUMBER = re.compile(r"_\d+$")
_PLAIN = {int, bool, str, type(None)}
_MAPPINGS = {dict, OrderedDict}


@dataclass(frozen=True)
class _Given:
    """The tensor argument of this number."""

    number: int


@dataclass(frozen=True)
class _Made:
    """A tensor that the call makes: the node that gives it, and another of its shape."""

    node: Any
    like: Any


@dataclass(frozen=True)
class _Known:
    """What a call did. path: of its module; nodes: what it wrote; given: the nodes of its tensors and weights; result:
    with _Given and _Made for tensors; changed: by the number of the container, what is in it afterwards; kept: objects
    whose identity is in the key."""

    path: str
    nodes: list[Any]
    given: list[Any]
    result: Any
    changed: dict[int, Any]
    kept: list[Any]


@contextmanager
def known_calls() -> Iterator[None]:
    """What is exported meanwhile. A release of PyTorch that is built otherwise exports as it does."""
    from torch.fx.experimental import proxy_tensor

    tracer_class: Any = getattr(proxy_tensor, "_ModuleStackTracer", None)
    original = getattr(tracer_class, "call_module", None)
    if original is None:
        yield
        return
    known: dict[Any, _Known] = {}
    called: set[nn.Module] = set()
    in_chunks = False

    def call_module(
        tracer: Any, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        nonlocal in_chunks
        if not in_chunks:
            in_chunks = module in called and len([*module.modules()]) >= _LEAST_MODULES
            called.add(module)
        try:
            if not in_chunks:
                raise NoCacheKey
            with torch._C.DisableTorchFunction():  # modes would be asked about every size that we look at
                call = _Call(tracer, module, args, kwargs)
        except NoCacheKey:
            return original(tracer, module, forward, args, kwargs)
        found = known.get(call.key)
        if found is not None:
            return call.again(found)
        before = next(iter(reversed(tracer.graph.nodes)))
        result = original(tracer, module, forward, args, kwargs)
        with suppress(NoCacheKey), torch._C.DisableTorchFunction():
            known[call.key] = call.described(before, result)
        return result

    try:
        with instead(tracer_class, "call_module", call_module):  # in this thread: others may be compiling
            yield
    finally:
        known.clear()  # or the exporter's leftovers would hold on to the model
        called.clear()


class _Call:
    """A call of a module, before it happens. Raises NoCacheKey for one that nothing can stand for."""

    def __init__(self, tracer: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if getattr(tracer, "enable_attr_proxy", True) or module not in tracer.submodule_paths:
            raise NoCacheKey
        self._tracer, self._path = tracer, tracer.submodule_paths[module]
        self._parts = [*module.named_modules()]
        if len(self._parts) < _LEAST_MODULES and any(type(a) in (list, dict) for a in (*args, *kwargs.values())):
            raise NoCacheKey
        self._tensors: list[Any] = []
        self._nodes: list[Any] = []
        self._shapes: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._containers: list[Any] = []
        self._kept: list[Any] = [tracer]
        arguments = self._key((args, tuple(kwargs.items())))
        self._held = self._state()
        self._contents = [self._shallow(c) for c in self._containers]
        self.key = (id(tracer), arguments, self._held, tuple(self._shapes))

    def again(self, known: _Known) -> Any:
        """Write what the known call wrote, do what it did, give what it gave."""
        new = dict(zip(known.given, self._nodes, strict=True))
        for node in known.nodes:
            new[node] = copied = self._copied(node, lambda n: new.get(n, n))
            if "nn_module_stack" in node.meta:
                copied.meta["nn_module_stack"] = self._moved(node.meta["nn_module_stack"], known)
        made: dict[Any, Any] = {}
        for number, after in known.changed.items():
            container = self._containers[number]
            container.clear()
            if isinstance(container, dict):
                container.update(self._built(after, new, made))
            else:
                container.extend(self._built(after, new, made))
        return self._built(known.result, new, made)

    def _copied(self, node: Any, moved: Callable[[Any], Any]) -> Any:
        """At the end of the graph. Under a name without its number: from one with it, the next that is free would be
        looked for from 1 on."""
        from torch.fx.node import map_arg

        name = _NUMBER.sub("", node.name)
        arguments = map_arg(node.args, moved), map_arg(node.kwargs, moved)
        copied = self._tracer.graph.create_node(node.op, node.target, *arguments, name, node.type)
        copied.meta = dict(node.meta)
        return copied

    def _moved(self, modules: Mapping[str, tuple[str, str]], known: _Known) -> dict[str, tuple[str, str]]:
        """The module of a node of the known call, as that of the same node of this one."""
        paths = {path: self._path + path.removeprefix(known.path) for path, _ in modules.values()}
        return {paths[path]: (paths[path], kind) for path, kind in modules.values()}

    def _built(self, value: Any, new: Mapping[Any, Any], made: dict[Any, Any]) -> Any:
        """A value that the known call gave, of this call's nodes. made: tensors, by the known call's nodes."""
        from torch.fx import Proxy
        from torch.fx.experimental.proxy_tensor import track_tensor_tree

        if isinstance(value, _Given):
            return self._tensors[value.number]
        if isinstance(value, _Made):
            if value.node not in made:
                made[value.node] = tensor = copy_of(value.like)
                track_tensor_tree(tensor, Proxy(new[value.node], self._tracer), constant=None, tracer=self._tracer)
            return made[value.node]
        if isinstance(value, dict):
            return {k: self._built(v, new, made) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)([self._built(v, new, made) for v in value])
        return value

    def described(self, before: Any, result: Any) -> _Known:
        """What the call did, when it has been followed; before: the last node until then. Raises NoCacheKey."""
        if self._state() != self._held:
            raise NoCacheKey
        nodes = []
        node = before.next
        while node.op != "root":
            nodes.append(node)
            node = node.next
        inside = {*nodes}
        known = {*nodes, *self._nodes}
        for node in filter(_is_value, nodes):
            if any(_is_value(n) and n not in known for n in node.all_input_nodes):
                raise NoCacheKey
        made: dict[int, _Made] = {}
        changed = {}
        for number, (container, contents) in enumerate(zip(self._containers, self._contents, strict=True)):
            if self._shallow(container) != contents:
                copied = type(container)(container)  # the container itself has a number, what it holds must not
                changed[number] = self._told(copied, inside, made)
        told = self._told(result, inside, made)
        return _Known(self._path, nodes, self._nodes, told, changed, self._kept)

    def _told(self, value: Any, inside: set[Any], made: dict[int, _Made]) -> Any:
        """A value that the call gave, with _Given and _Made for tensors. Raises NoCacheKey."""
        if isinstance(value, Tensor):
            if id(value) in self._numbers:
                return _Given(self._numbers[id(value)])
            if id(value) not in made:
                node = self._node(value)
                if node not in inside:
                    raise NoCacheKey
                made[id(value)] = _Made(node, copy_of(value))
            return made[id(value)]
        kind = type(value)
        if kind in _PLAIN or kind is float:
            return value
        if kind not in (list, tuple, dict) or any(value is c for c in self._containers):
            raise NoCacheKey
        if kind is dict:
            return {k: self._told(v, inside, made) for k, v in value.items()}
        return kind([self._told(v, inside, made) for v in value])

    def _key(self, value: Any) -> Any:
        """What a call can depend on in an argument; tensors and containers are numbered."""
        if isinstance(value, Tensor):
            return Tensor, self._number(value)
        if type(value) in (list, dict):
            for number, container in enumerate(self._containers):
                if container is value:
                    return type(value), number
            self._containers.append(value)
            inner = [*value.items()] if type(value) is dict else value
            return type(value), *(self._key(v) for v in inner)
        if type(value) is tuple:
            return tuple(self._key(v) for v in value)
        return key_of(value, None, [])

    def _number(self, tensor: Any) -> int:
        """Of a tensor among those of the call."""
        number = self._numbers.get(id(tensor))
        if number is None:
            self._nodes.append(self._node(tensor))
            # a chunk of a clip begins where it begins
            self._shapes.append(key_of(tensor, getattr(tensor, "fake_mode", None), [], offsets=False))
            self._tensors.append(tensor)
            self._numbers[id(tensor)] = number = len(self._numbers)
        return number

    def _state(self) -> Any:
        """All that the modules hold."""
        self._seen: set[int] = set()
        return tuple((name, type(part), self._held_by(vars(part))) for name, part in self._parts)

    def _held_by(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return kind, value
        if kind is float:
            return kind, value.hex()  # 0.0 equals -0.0
        if kind in _MAPPINGS or isinstance(value, Mapping):
            held: list[Any] = []
            for name, each in value.items():  # of the thousands that modules hold, most are plain or empty
                if type(each) in _PLAIN:
                    held += (name, type(each), each)
                elif type(each) in _MAPPINGS and not each:
                    held.append(name)
                else:
                    held += (name, self._held_by(each))
            return tuple(held)
        if isinstance(value, nn.Module):
            return kind  # what it holds is told by itself
        if isinstance(value, Tensor):
            number = self._number(value)
            if self._nodes[number].op != "placeholder":
                raise NoCacheKey
            return Tensor, number
        if isinstance(value, Sequence) or kind is set:
            return kind, *[self._held_by(v) for v in value]
        self._kept.append(value)  # or another object might have its identity one day
        if id(value) in self._seen or isinstance(value, type) or not hasattr(value, "__dict__"):
            return id(value)
        self._seen.add(id(value))
        return id(value), self._held_by(vars(value))

    def _shallow(self, container: Any) -> list[Any]:
        """To see whether a call changed it. The objects live meanwhile: they are arguments."""
        self._kept.extend(container.values() if type(container) is dict else container)
        return [*((k, id(v)) for k, v in container.items())] if type(container) is dict else [id(v) for v in container]

    def _node(self, tensor: Any) -> Any:
        from torch.fx.experimental.proxy_tensor import get_proxy_slot

        slot: Any = get_proxy_slot(tensor, self._tracer, None)
        if slot is None or slot.constant is not None:
            raise NoCacheKey
        return slot.proxy.node


def _is_value(node: Any) -> bool:
    """Sizes are none: they follow from shapes."""
    return isinstance(node.meta.get("val"), (Tensor, list, tuple))
