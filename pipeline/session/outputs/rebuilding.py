"""Which of a model's returned objects can be made again from fewer tensors than they hold.

A posterior holds the moments and much that follows from them. While the model is traced, each distribution is made a
second time by its constructor, from its ``parameters`` and its plain attributes (``proposed``). When the graph is
there, the two are compared, operation by operation (``settled``): where everything that the second holds is the same
computation, the moments are enough, and the rest is no output of the graph. What else the graph proves is noted, too:
where mean and log variance are, so that a posterior is read without its class.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tvae.pipeline.engine.ir.graph import Graph, Ref, refs_in
from tvae.pipeline.engine.ir.sizes import Size
from tvae.pipeline.engine.passes import remove_unused
from tvae.pipeline.session.outputs.classes import class_of, constructor_arguments, has_method
from tvae.pipeline.session.outputs.spec import Spec, can_be_called, nodes_of
from tvae.pipeline.session.outputs.taken_apart import Posterior, flatten, is_plain_tensor, rebuild
from tvae.pipeline.session.tensor_digest import tensor_digest

__all__ = ["SameComputations", "proposed", "settled"]

_log = logging.getLogger("tvae")

_DRAWING = {
    *("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson", "dropout"),
    *("rand_like", "randn_like", "randint_like", "normal_", "uniform_", "bernoulli_", "exponential_", "random_"),
}
COPIED = "alias_copy"
"""The operation that copies the inputs of a second call."""
_OF_SHAPES = {
    *("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"),
    *("new_zeros", "new_ones", "new_empty", "new_full"),
}
"""Of their operand they take shape and type."""
_LEAVES = ("tensor", "constant", "size", "device", "dtype")


class _Draws(Exception):
    """Noise was asked for."""


class _WithoutNoise(TorchFunctionMode):
    """Noise in a graph stays there, used or not: a mere trial must not draw any."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _DRAWING:
            raise _Draws
        return func(*args, **(kwargs or {}))


def proposed(tensors: Sequence[Tensor], spec: Spec) -> tuple[list[Tensor], Spec]:
    """What ``flatten`` gave, followed by the tensors of every distribution made again. To be called while tracing."""
    more = list(tensors)
    for node in nodes_of(spec):
        if _is_distribution(node) and all(kind in _LEAVES for part in node["state"].values() for kind in part):
            node["tried"] = _Trial(node, tensors, more).notes
        elif _is_distribution(node):
            node["tried"] = {}
    return more, spec


def settled(graph: Graph, spec: Spec) -> tuple[Graph, Spec]:
    """The graph with as few outputs as give the value again, and the description in terms of those.

    graph, spec: captured from what ``proposed`` gave, in-place operations and identities taken out.
    """
    if not spec:
        return graph, spec
    proof = SameComputations(graph)
    spec = _decided(spec, proof)
    used = sorted({leaf["tensor"] if "tensor" in leaf else leaf["size"][0] for leaf in _leaves(spec)})
    outputs = [graph.outputs[k] for k in used]
    found = _renumbered(spec, {k: at for at, k in enumerate(used)})
    kinds = (graph.nodes[i].meta.dtype for i in outputs)
    own = next((str(kind).removeprefix("torch.") for kind in kinds if kind.is_floating_point), None)
    for leaf in nodes_of(found):
        if own is not None and leaf.get("dtype") == own:
            leaf["dtype"] = None
    return remove_unused(replace(graph, outputs=outputs)), found


def _is_distribution(node: Spec) -> bool:
    cls = class_of(node["class"]) if "class" in node else None
    return cls is not None and has_method(cls, "sample")


class _Trial:
    """A distribution made again. notes: where among the tensors what was found is."""

    def __init__(self, node: Spec, tensors: Sequence[Tensor], more: list[Tensor]) -> None:
        self._node, self._tensors, self._more = node, tensors, more
        self.notes: Spec = {}
        with _WithoutNoise():
            again = self._try(self._again)
            if again is not None:
                self.notes["arguments"], self.notes["state"] = again
            copy = rebuild(node, self._copies())
            mean = self._try(lambda: copy.mean)
            mean = mean if isinstance(mean, Tensor) else self._try(lambda: copy.mode())
            self._note("mean", mean)
            self._note("logvar", logvar := self._try(lambda: copy.logvar))
            self._note("std", self._try(lambda: copy.std))
            self._note("sample", self._try(lambda: copy.sample()))
            if isinstance(logvar, Tensor):
                self._note("usual std", torch.exp(0.5 * logvar))
            moments = self._copies()[self._first] if self._first is not None else None
            if moments is not None and moments.ndim > 1 and type(moments.shape[1]) is int and moments.shape[1] % 2 == 0:
                usual = Posterior.from_moments(moments)
                self._note("usual mean", usual.mean)
                self._note("usual logvar", usual.logvar)

    @property
    def _first(self) -> int | None:
        """Which tensor the moments are."""
        found: int | None = self._node["state"].get("parameters", {}).get("tensor")
        return found

    def _copies(self) -> list[Tensor]:
        """Copies: an object that changes its tensors in place changes those."""
        used = {part["tensor"] for part in self._node["state"].values() if "tensor" in part}
        return [t.clone() if k in used else t for k, t in enumerate(self._tensors)]

    def _again(self) -> tuple[Spec, Spec] | None:
        cls: Any = class_of(self._node["class"])
        state = self._node["state"]
        arguments = constructor_arguments(cls)
        if self._first is None or arguments is None:
            return None
        given = {n: state[n]["constant"] for n in arguments[1] if "constant" in state.get(n, {})}
        if not can_be_called(cls, given):
            return None
        tensors, found = flatten(cls(self._copies()[self._first], **given))
        if found.get("class") != self._node["class"] or found["items"]:
            return None
        start = len(self._more)
        self._more += tensors
        return given, _renumbered(found, {k: start + k for k in range(len(tensors))})["state"]

    def _try(self, attempt: Callable[[], Any]) -> Any:
        try:
            return attempt()
        except Exception as error:  # a user's class may lack this: then nothing is known of it
            _log.debug("a returned object was tried without success: %s", error)
            return None

    def _note(self, name: str, found: Any) -> None:
        if is_plain_tensor(found):
            self.notes[name] = len(self._more)
            self._more.append(found)


class SameComputations:
    """Which outputs of a graph are the same computation."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._numbers: list[int] = []
        first: dict[Any, int] = {}
        for id_, node in enumerate(graph.nodes):
            if node.op in ("clone", COPIED) and not node.kwargs and len(node.args) == 1:
                self._numbers.append(self._numbers[node.args[0].id])
                continue
            what: Any = id_
            if node.kind == "param" and node.target in graph.constants:
                value = graph.constants[node.target]  # each call makes one of its own
                what = "constant", value.dtype, value.shape, value.device, tensor_digest(value)
            elif node.kind == "param" or (node.kind == "call" and node.op not in _DRAWING):
                kwargs = sorted(node.kwargs.items())
                what = node.kind, node.target, self._frozen(node.args), self._frozen(kwargs), node.outputs
            self._numbers.append(first.setdefault(what, id_))

    def same(self, one: int, other: int, *, apart: bool = False) -> bool:
        """Are these outputs equal? apart: also for other inputs of the second, which has copies of them."""
        return self._number(one) == self._number(other) and not (apart and self._reads_inputs(other))

    def _reads_inputs(self, output: int) -> bool:
        """Is it made of values of the inputs, and not of those of copies?"""
        left, seen = [self._graph.outputs[output]], set[int]()
        while left:
            id_ = left.pop()
            node = self._graph.nodes[id_]
            if id_ in seen or node.op == COPIED or node.op in _OF_SHAPES:
                continue
            if node.kind == "input":
                return True
            seen.add(id_)
            left += refs_in((node.args, tuple(node.kwargs.values())))
        return False

    def is_zero(self, output: int) -> bool:
        return self._graph.nodes[self._number(output)].op in ("zeros", "zeros_like")

    def earliest(self, output: int) -> int:
        """The first output that is equal to this one."""
        return next(k for k in range(output + 1) if self.same(k, output))

    def _number(self, output: int) -> int:
        return self._numbers[self._graph.outputs[output]]

    def _frozen(self, arg: Any) -> Any:
        if isinstance(arg, Ref):
            return "value", self._numbers[arg.id]
        if isinstance(arg, (tuple, list)):
            return tuple(self._frozen(a) for a in arg)
        return arg if isinstance(arg, Size) else (type(arg).__name__, repr(arg))


def _decided(spec: Spec, proof: SameComputations) -> Spec:
    """The description without what was tried: by the constructor where that is proven."""
    found = {k: v for k, v in spec.items() if k != "tried"}
    if "state" in spec:
        found["state"] = {k: _decided(v, proof) for k, v in spec["state"].items()}
    if "items" in spec:
        parts = spec["items"]
        found["items"] = [[v[0], _decided(v[1], proof)] if isinstance(v, list) else _decided(v, proof) for v in parts]
    tried = spec.get("tried")
    if tried is None:
        return found
    first = spec["state"].get("parameters", {}).get("tensor")
    found["posterior"] = posterior = _posterior(tried, first, proof)
    told = "arguments" in tried and posterior is not None and "moments" in posterior
    if told and _equal(tried["state"], spec["state"], proof):
        kept = {k: v for k, v in found.items() if k not in ("state", "items")}
        return kept | {"from": {"tensor": first}, "arguments": tried["arguments"]}
    return found


def _posterior(tried: Mapping[str, int], first: int | None, proof: SameComputations) -> Spec | None:
    """Where mean and log variance are; None where the graph does not prove what they are."""
    mean, logvar, std, sample = (tried.get(name) for name in ("mean", "logvar", "std", "sample"))
    if mean is None:
        return None
    still = logvar is None and sample is not None and proof.same(sample, mean)
    point = still or (std is not None and proof.is_zero(std))
    if not point and (logvar is None or (std is not None and not proof.same(std, tried["usual std"]))):
        return None
    usual = "usual mean" in tried and proof.same(mean, tried["usual mean"])
    if usual and (point or (logvar is not None and proof.same(logvar, tried["usual logvar"]))):
        return {"moments": {"tensor": first}, "point": point}
    known = None if point or logvar is None else {"tensor": proof.earliest(logvar)}
    return {"mean": {"tensor": proof.earliest(mean)}, "logvar": known}


def _equal(one: Any, other: Any, proof: SameComputations) -> bool:
    """Two descriptions of one value, in tensors that are the same computation."""
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return False
        if "tensor" in one and one.keys() == {"tensor"} and type(one["tensor"]) is int:
            return proof.same(one["tensor"], other["tensor"])
        return all(_equal(one[k], other[k], proof) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_equal(a, b, proof) for a, b in zip(one, other, strict=True))
    return type(one) is type(other) and bool(one == other)


def _leaves(spec: Spec) -> Iterator[Spec]:
    """Every mention of a tensor."""
    for node in nodes_of(spec):
        parts = [node, node.get("from"), *(node.get("posterior") or {}).values()]
        yield from (part for part in parts if isinstance(part, dict) and ("tensor" in part or "size" in part))


def _renumbered(spec: Spec, numbers: Mapping[int, int]) -> Spec:
    """The description with its tensors under other numbers."""

    def of(part: Any) -> Any:
        if isinstance(part, list):
            return [of(p) for p in part]
        if not isinstance(part, dict):
            return part
        if part.keys() == {"tensor"} and type(part["tensor"]) is int:
            return {"tensor": numbers[part["tensor"]]}
        if part.keys() == {"size"} and isinstance(part["size"], list):
            return {"size": [numbers[part["size"][0]], part["size"][1]]}
        return {k: v if k == "arguments" else of(v) for k, v in part.items()}

    found: Spec = of(spec)
    return found
