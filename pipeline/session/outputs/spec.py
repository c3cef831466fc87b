"""The description of a returned value as it is kept on disk. Nothing in it is trusted: it is checked when read.

A description is JSON. It may contain only this::

    {"tensor": 0}                                the graph's output of this number
    {"constant": plain}                          None, a truth value, a number, a text
    {"size": [0, 2]}                             the size of an output along a dimension
    {"device": "cpu" | null}                     null: that of the run
    {"dtype": "float32" | null}                  null: that of the first output that has a floating type
    {"sequence": "tuple", "items": [...]}        also list, and size for torch.Size
    {"mapping": "dict", "items": [[key, ...]]}   also OrderedDict
    {"class": name, "digest": ..., "state": {attribute: ...}, "items": [...]}     made again with its state
    {"class": name, "digest": ..., "from": {"tensor": 0}, "arguments": {...}}     made again by its constructor
    {"same": 0}                                  the value that has this "id"

A distribution has ``posterior``, too: what ``outputs.posterior_of`` says of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from tvae.pipeline.session.outputs.classes import (
    ClassName,
    base_of,
    class_of,
    constructor_arguments,
    digest_of,
    has_method,
    holds,
    why_refused,
)

__all__ = [
    "DEEPEST",
    "PLAIN",
    "Spec",
    "can_be_called",
    "checked",
    "importable",
    "is_resolved",
    "nodes_of",
    "resolvable",
]

Spec = dict[str, Any]
"""A description, see the module's docstring."""

DEEPEST = 24
"""Most levels of values inside one another."""
_LARGEST = 4096
_LONGEST = 1000
PLAIN = (type(None), bool, int, float, str)
"""The types of constants. Exactly these: what is below them holds more."""
_DEVICES = ("cpu", "cuda", "mps", "xpu", "meta")


def checked(doc: object, ranks: Sequence[int]) -> Spec:
    """A description that was read from disk. Raises ValueError for anything else.

    ranks: how many dimensions each output of its graph has.
    """
    return _Reader(ranks).spec(doc, 0)


def importable(spec: Spec) -> bool:
    """Can another process find every class by its name? A class inside a function has none."""
    return all(class_of(str(node["class"])) is class_of(node["class"]) for node in nodes_of(spec) if "class" in node)


def resolvable(spec: Spec) -> bool:
    """Is every class here already, the same as when the value was described, and of a kind that may be made again?

    Nothing is imported and nothing is called to find out. False: as though there were no such graph.
    """
    return all(is_resolved(node) for node in nodes_of(spec) if "class" in node)


def can_be_called(cls: type, names: Mapping[str, Any]) -> bool:
    """May its constructor be called, with arguments of these names beside the first? A distribution's, with numbers."""
    arguments = constructor_arguments(cls)
    if arguments is None or not (has_method(cls, "sample") and has_method(cls, "mode")):
        return False
    numbers = all(type(value) in (type(None), bool, int, float) for value in names.values())
    needed = {name for name, must in arguments[1].items() if must}
    return numbers and needed <= names.keys() <= arguments[1].keys()


def nodes_of(spec: Spec) -> Iterator[Spec]:
    """The description and all that are in it, outer ones first."""
    yield spec
    inner = [*spec.get("state", {}).values(), *spec.get("items", ())]
    for part in inner:
        if isinstance(part, list):  # a key and what belongs to it
            part = part[1]
        yield from nodes_of(part)


def is_resolved(node: Spec) -> bool:
    """``resolvable`` for one object, without what is in it."""
    cls = class_of(node["class"])
    if cls is None or why_refused(cls) is not None or digest_of(cls) != node["digest"]:
        return False
    if "from" in node:
        return can_be_called(cls, node["arguments"])
    base = base_of(cls)
    pairs = base in (dict, OrderedDict)
    if base is tuple and (node["state"] or "id" in node):
        return False
    if not (base in (tuple, list) or pairs) and node["items"]:
        return False
    return holds(cls, node["state"]) and all(isinstance(item, list) == pairs for item in node["items"])


class _Reader:
    """Reads one description."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks, self._left, self._ids = ranks, _LARGEST, set[int]()

    def spec(self, doc: object, depth: int) -> Spec:
        self._left -= 1
        _must(isinstance(doc, dict) and depth <= DEEPEST and self._left >= 0)
        assert isinstance(doc, dict)
        kind = next((kind for kind in _KINDS if kind in doc), None)
        _must(kind is not None)
        assert kind is not None
        if "id" in doc:
            _must(kind in ("sequence", "mapping", "class") and _is_count(doc["id"], _LARGEST))
            self._ids.add(doc["id"])
        found: Spec = _KINDS[kind](self, {k: v for k, v in doc.items() if k != "id"}, depth)
        return found | ({"id": doc["id"]} if "id" in doc else {})

    def tensor(self, doc: Spec, _: int) -> Spec:
        _keys(doc, "tensor")
        _must(_is_count(doc["tensor"], len(self._ranks)))
        return doc

    def constant(self, doc: Spec, _: int) -> Spec:
        _keys(doc, "constant")
        return {"constant": _plain(doc["constant"])}

    def size(self, doc: Spec, _: int) -> Spec:
        _keys(doc, "size")
        pair = doc["size"]
        _must(isinstance(pair, list) and len(pair) == 2)
        _must(_is_count(pair[0], len(self._ranks)) and _is_count(pair[1], self._ranks[pair[0]]))
        return doc

    def device(self, doc: Spec, _: int) -> Spec:
        _keys(doc, "device")
        name = doc["device"]
        if name is not None:
            kind, colon, index = _text(name).partition(":")
            _must(kind in _DEVICES and (not colon or (index.isascii() and index.isdigit() and len(index) < 4)))
        return doc

    def dtype(self, doc: Spec, _: int) -> Spec:
        _keys(doc, "dtype")
        name = doc["dtype"]
        _must(name is None or isinstance(vars(torch).get(_text(name)), torch.dtype))
        return doc

    def same(self, doc: Spec, _: int) -> Spec:
        _keys(doc, "same")
        _must(_is_count(doc["same"], _LARGEST) and doc["same"] in self._ids)
        return doc

    def sequence(self, doc: Spec, depth: int) -> Spec:
        _keys(doc, "sequence", "items")
        _must(doc["sequence"] in ("tuple", "list", "size") and isinstance(doc["items"], list))
        items = [self.spec(item, depth + 1) for item in doc["items"]]
        _must(doc["sequence"] != "size" or all(_is_size(item) for item in items))
        return doc | {"items": items}

    def mapping(self, doc: Spec, depth: int) -> Spec:
        _keys(doc, "mapping", "items")
        _must(doc["mapping"] in ("dict", "OrderedDict") and isinstance(doc["items"], list))
        return doc | {"items": [self._pair(item, depth) for item in doc["items"]]}

    def instance(self, doc: Spec, depth: int) -> Spec:
        _must(_text(doc.get("digest")) != "" and ":" in _text(doc["class"]))
        more = {"posterior": self._posterior(doc["posterior"])} if "posterior" in doc else {}
        rest = {k: v for k, v in doc.items() if k != "posterior"}
        named = {"class": str(doc["class"]), "digest": doc["digest"]} | more
        if "from" in doc:
            _keys(rest, "class", "digest", "from", "arguments")
            _must(isinstance(doc["arguments"], dict))
            arguments = {_text(k): _plain(v) for k, v in doc["arguments"].items()}
            return named | {"from": self._tensor(doc["from"]), "arguments": arguments}
        _keys(rest, "class", "digest", "state", "items")
        _must(isinstance(doc["state"], dict) and isinstance(doc["items"], list))
        state = {_text(k): self.spec(v, depth + 1) for k, v in doc["state"].items()}
        items = [self._pair(v, depth) if isinstance(v, list) else self.spec(v, depth + 1) for v in doc["items"]]
        return named | {"state": state, "items": items}

    def _pair(self, doc: object, depth: int) -> list[Any]:
        _must(isinstance(doc, list) and len(doc) == 2)
        assert isinstance(doc, list)
        return [_plain(doc[0]), self.spec(doc[1], depth + 1)]

    def _tensor(self, doc: object) -> Spec:
        _must(isinstance(doc, dict) and "tensor" in doc)
        return self.spec(doc, 0)

    def _posterior(self, doc: object) -> Spec | None:
        if doc is None:
            return None
        _must(isinstance(doc, dict))
        assert isinstance(doc, dict)
        if "moments" in doc:
            _keys(doc, "moments", "point")
            _must(type(doc["point"]) is bool)
            moments = self._tensor(doc["moments"])
            _must(self._ranks[moments["tensor"]] > 1)
            return doc | {"moments": moments}
        _keys(doc, "mean", "logvar")
        logvar = None if doc["logvar"] is None else self._tensor(doc["logvar"])
        return {"mean": self._tensor(doc["mean"]), "logvar": logvar}


_KINDS: dict[str, Callable[[_Reader, Spec, int], Spec]] = {
    "tensor": _Reader.tensor,
    "constant": _Reader.constant,
    "size": _Reader.size,
    "device": _Reader.device,
    "dtype": _Reader.dtype,
    "same": _Reader.same,
    "sequence": _Reader.sequence,
    "mapping": _Reader.mapping,
    "class": _Reader.instance,
}


def _must(holds: bool) -> None:
    if not holds:
        raise ValueError("not the description of a returned value")


def _keys(doc: Spec, *names: str) -> None:
    _must(doc.keys() == {*names})


def _is_count(value: object, end: int) -> bool:
    return type(value) is int and 0 <= value < end


def _is_size(item: Spec) -> bool:
    return "size" in item or type(item.get("constant")) is int


def _plain(value: object) -> Any:
    _must(type(value) in PLAIN)
    return _text(value) if isinstance(value, str) else value


def _text(value: object) -> str:
    _must(type(value) in (str, ClassName) and isinstance(value, str) and len(value) <= _LONGEST)
    return str(value)
