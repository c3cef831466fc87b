"""Arguments of a model's ``encode`` and ``decode``, and results as tuples, as diffusers' callers give and want them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.calls import Call, Side
from tvae.pipeline.models.nested import apart

__all__ = ["arguments_of", "as_tuple", "has_own_tuple", "tensors_and_options"]


def arguments_of(side: Side, method: Any, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """By name, all but the first and those that name their default.

    Raises UsageError where a method takes ``*args`` and their names are unknown.
    """
    bound = hasattr(method, "__self__")  # its function is the same for all models of a class, and lives as long
    signature, takes_one = _signature(method.__func__ if bound else method, bound)
    if not (args or kwargs) and takes_one:
        return {}
    found = dict([*signature.bind(x, *args, **kwargs).arguments.items()][1:])
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL and args:
            raise UsageError(f"{side}(): pass all arguments after the first by name")
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= found.pop(parameter.name, {})
        elif found.get(parameter.name, parameter.empty) is parameter.default:
            found.pop(parameter.name, None)
    return found


def as_tuple(value: Any) -> tuple[Any, ...]:
    """diffusers' ``return_dict=False``: the fields of the output that are set."""
    if isinstance(value, tuple):
        return value
    if hasattr(value, "to_tuple"):
        return tuple(value.to_tuple())
    if hasattr(value, "__dataclass_fields__"):
        return tuple(v for v in vars(value).values() if v is not None)
    return (value,)


def has_own_tuple(method: Any) -> bool:
    """What ``return_dict=False`` gives is told by diffusers' convention (``as_tuple``), or else asked of the model."""
    home = str(getattr(method, "__module__", "")).partition(".")[0]
    bound = hasattr(method, "__self__")
    named = "return_dict" in _signature(method.__func__ if bound else method, bound)[0].parameters
    return named and home not in ("diffusers", "tvae")


@functools.lru_cache(maxsize=64)
def _signature(function: Any, bound: bool) -> tuple[inspect.Signature, bool]:
    """A function's, and whether it can be called with one argument."""
    found = inspect.signature(MethodType(function, object()) if bound else function)
    return found, _takes_one(found)


def _takes_one(signature: inspect.Signature) -> bool:
    first, *others = signature.parameters.values()
    starred = (first.VAR_POSITIONAL, first.VAR_KEYWORD)
    return first.kind not in (first.KEYWORD_ONLY, first.VAR_KEYWORD) and all(
        p.default is not p.empty or p.kind in starred for p in others
    )


def tensors_and_options(side: Side, given: Mapping[str, Any]) -> tuple[list[Tensor], Call, torch.Generator | None]:
    """The arguments after the first: tensors, those in lists, tuples and dictionaries too; what a capture bakes in; the
    generator. Raises UsageError."""
    tensors: dict[str, Tensor] = {}
    options: dict[str, Any] = {}
    for name, value in given.items():
        if name == "generator":
            continue
        try:
            found = apart(value, name, tensors)
        except TypeError as error:
            raise UsageError(f"{side}(): argument {error}, which cannot be captured") from None
        if not isinstance(value, Tensor):
            options[name] = found
    return [*tensors.values()], Call(tuple(tensors), tuple(sorted(options.items()))), given.get("generator")
