"""Calls of a module that the exporter has followed before: it follows each of them once.

A model that goes over a clip in chunks calls the same decoder for every chunk, and from the third on with arguments
alike: tensors of the same shapes, the same flags. What the first of such calls wrote into the graph is written again,
with this call's tensors in the place of that one's. Arguments that a call changes (a list of caches) are changed again.

A call is known where everything that it can depend on is the same: the shapes of its tensors and which of them are one,
all other arguments, and all that its modules hold. Whatever goes beyond that is followed as ever: arguments of other
kinds, modules that change themselves, tensors from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from tvae.pipeline.engine.known_shapes import Untold, copy_of, key_of

__all__ = ["known_calls"]

_LEAST_MODULES = 16
"""Of a module whose calls are worth it: to know one again takes a few milliseconds."""


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
    """What a call did. nodes: what it wrote; given: the nodes of its tensors; result: with _Given and _Made for
    tensors; changed: by the number of the container, what is in it afterwards; kept: objects whose identity is in the
    key."""

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

    def call_module(
        tracer: Any, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            call = _Call(tracer, module, args, kwargs)
        except Untold:
            return original(tracer, module, forward, args, kwargs)
        found = known.get(call.key)
        if found is not None:
            return call.again(found)
        before = next(iter(reversed(tracer.graph.nodes)))
        result = original(tracer, module, forward, args, kwargs)
        with suppress(Untold):
            known[call.key] = call.described(before, result)
        return result

    tracer_class.call_module = call_module
    try:
        yield
    finally:
        tracer_class.call_module = original
        known.clear()


class _Call:
    """A call of a module, before it happens. Raises Untold for one that nothing can stand for."""

    def __init__(self, tracer: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        parts = [*module.modules()]
        if len(parts) < _LEAST_MODULES or getattr(tracer, "enable_attr_proxy", True):
            raise Untold
        self._tracer, self._parts = tracer, parts
        self._tensors: list[Any] = []
        self._containers: list[Any] = []
        self._kept: list[Any] = [tracer, module]
        arguments = self._key((*args, *kwargs.items()))
        self._held = self._state()
        self._contents = [self._shallow(c) for c in self._containers]
        self._nodes = [self._node(t) for t in self._tensors]
        self.key = (id(tracer), id(module), arguments, self._held)

    def again(self, known: _Known) -> Any:
        """Write what the known call wrote, do what it did, give what it gave."""
        new = dict(zip(known.given, self._nodes, strict=True))
        for node in known.nodes:
            new[node] = self._tracer.graph.node_copy(node, lambda n: new.get(n, n))
        made: dict[Any, Any] = {}
        for number, after in known.changed.items():
            container = self._containers[number]
            container.clear()
            if isinstance(container, dict):
                container.update(self._built(after, new, made))
            else:
                container.extend(self._built(after, new, made))
        return self._built(known.result, new, made)

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
        """What the call did, when it has been followed; before: the last node until then. Raises Untold."""
        if self._state() != self._held:
            raise Untold
        nodes = []
        node = before.next
        while node.op != "root":
            nodes.append(node)
            node = node.next
        inside = {*nodes}
        for node in filter(_may_vary, nodes):
            if any(_may_vary(n) and n not in inside and n not in self._nodes for n in node.all_input_nodes):
                raise Untold
        made: dict[int, _Made] = {}
        changed = {}
        for number, (container, contents) in enumerate(zip(self._containers, self._contents, strict=True)):
            if self._shallow(container) != contents:
                copied = type(container)(container)  # the container itself has a number, what it holds must not
                changed[number] = self._told(copied, inside, made)
        return _Known(nodes, self._nodes, self._told(result, inside, made), changed, self._kept)

    def _told(self, value: Any, inside: set[Any], made: dict[int, _Made]) -> Any:
        """A value that the call gave, with _Given and _Made for tensors. Raises Untold."""
        if isinstance(value, Tensor):
            for number, tensor in enumerate(self._tensors):
                if tensor is value:
                    return _Given(number)
            if id(value) not in made:
                node = self._node(value)
                if node not in inside:
                    raise Untold
                made[id(value)] = _Made(node, copy_of(value))
            return made[id(value)]
        kind = type(value)
        if kind in (int, float, bool, str, type(None)):
            return value
        if kind not in (list, tuple, dict) or any(value is c for c in self._containers):
            raise Untold
        if kind is dict:
            return {k: self._told(v, inside, made) for k, v in value.items()}
        return kind([self._told(v, inside, made) for v in value])

    def _key(self, value: Any) -> Any:
        """What a call can depend on in an argument; tensors and containers are numbered."""
        if isinstance(value, Tensor):
            for number, tensor in enumerate(self._tensors):
                if tensor is value:
                    return number
            mode = getattr(value, "fake_mode", None)
            if mode is None:
                raise Untold
            self._tensors.append(value)
            return key_of(value, mode, [], offsets=False)  # a chunk of a clip begins where it begins
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

    def _state(self) -> Any:
        """All that the modules hold."""
        return tuple(self._held_by(vars(part)) for part in self._parts)

    def _held_by(self, value: Any) -> Any:
        kind = type(value)
        if kind in (int, float, bool, str, type(None)):
            return kind, value
        if isinstance(value, Mapping):
            return tuple((k, self._held_by(v)) for k, v in value.items())
        if isinstance(value, Sequence) or kind is set:
            return tuple(self._held_by(v) for v in value)
        self._kept.append(value)  # or another object might have its identity one day
        return id(value)

    def _shallow(self, container: Any) -> list[Any]:
        """To see whether a call changed it. The objects live meanwhile: they are arguments."""
        self._kept.extend(container.values() if type(container) is dict else container)
        return [*((k, id(v)) for k, v in container.items())] if type(container) is dict else [id(v) for v in container]

    def _node(self, tensor: Any) -> Any:
        from torch.fx.experimental.proxy_tensor import get_proxy_slot

        slot: Any = get_proxy_slot(tensor, self._tracer, None)
        if slot is None or slot.constant is not None:
            raise Untold
        return slot.proxy.node


def _may_vary(node: Any) -> bool:
    """Can it be another value in another call? Weights and inputs are there for all, sizes follow from shapes."""
    return node.op not in ("placeholder", "get_attr") and isinstance(node.meta.get("val"), (Tensor, list, tuple))
