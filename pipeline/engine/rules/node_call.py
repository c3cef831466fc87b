"""A node's own operation as a function of the values that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Protocol

import torch

from tvae.pipeline.engine.ir.graph import Node, Ref, map_refs, refs_in
from tvae.pipeline.engine.ir.resolve import resolve

__all__ = ["Invoke", "draws", "in_order", "node_call"]


class Invoke(Protocol):
    """A call with operands from a reader of their ids. more: arguments that the node does not have."""

    def __call__(self, read: Callable[[int], Any], /, **more: Any) -> Any: ...


def node_call(target: Callable[..., Any], node: Node, ids: Mapping[int, int], value: Callable[[Any], Any]) -> Invoke:
    """``target`` with the node's arguments, as a function of a reader of operand ids.

    ids: of ops by node. value: gives an argument with its sizes resolved; asked in the first call, for all.
    """
    known: list[tuple[Any, Any, bool]] = []

    def prepare() -> tuple[Any, Any, bool]:
        args, kwargs = map_refs([node.args, node.kwargs], lambda a: a if type(a) is Ref else value(a))
        return args, kwargs, not refs_in([[a for a in args if type(a) is not Ref], kwargs])

    def invoke(read: Callable[[int], Any], /, **more: Any) -> Any:
        if not known:
            known.append(prepare())
        args, kwargs, flat = known[0]
        if flat:  # no list of values, mostly: looking into every argument would take as long as a launch
            return target(*[read(ids[a.id]) if type(a) is Ref else a for a in args], **kwargs, **more)
        args, kwargs = map_refs((args, kwargs), lambda ref: read(ids[ref.id]))
        return target(*args, **kwargs, **more)

    return invoke


def draws(node: Node) -> bool:
    """May the operation draw random numbers? One of many that can does not with these arguments."""
    if node.kind != "call" or not _may_draw(node.target):
        return False
    known = resolve(node.target)._schema.arguments  # type: ignore[attr-defined]
    said = {each.name: each.default_value for each in known if each.has_default_value()}
    said |= dict(zip([each.name for each in known], node.args, strict=False)) | node.kwargs
    idle = any(said.get(name) is False for name in ("train", "training"))
    return not idle and not any(said.get(name) == 0 for name in ("dropout", "dropout_p"))


@lru_cache(1 << 12)
def _may_draw(target: str) -> bool:
    """With some arguments?"""
    found = None if target.startswith("tvae.") else resolve(target)
    return isinstance(found, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in found.tags


def in_order(invoke: Invoke) -> Invoke:
    """The same call of an operation that draws. Its numbers come in the order in which its operand lies in memory. That
    is to be the order of its dimensions: the engine's maps have channels last."""

    def ordered(read: Callable[[int], Any], /, **more: Any) -> Any:
        return invoke(lambda id_: read(id_).contiguous(), **more)

    return ordered
