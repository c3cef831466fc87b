"""Values of many types that a model may return, how alike two are, and descriptions of them as they stand on disk."""

from __future__ import annotations

import json
import types
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.session.outputs import Spec, check_spec

__all__ = ["Derived", "Frozen", "Items", "Pair", "Slotted", "alike", "from_disk", "holder", "named"]

Pair = namedtuple("Pair", ["first", "second"])


def alike(ours: Any, theirs: Any, where: str = "") -> None:
    """Same types everywhere, same plain values, tensors within 1e-5."""
    assert type(ours) is type(theirs), where
    if isinstance(theirs, Tensor):
        assert ours.shape == theirs.shape, where
        assert ours.dtype == theirs.dtype, where
        assert ours.device == theirs.device, where
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()) + 1e-12)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs), where
        for key in theirs:
            alike(ours[key], theirs[key], f"{where}[{key!r}]")
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), where
        for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            alike(one, other, f"{where}[{at}]")
    elif isinstance(theirs, Slotted):
        alike([ours.mean, ours.name], [theirs.mean, theirs.name], where)
    elif not hasattr(theirs, "__dict__"):
        assert ours == theirs or ours != ours, where
    if hasattr(theirs, "__dict__") and not isinstance(theirs, Tensor):
        alike(vars(ours), vars(theirs), where)


def from_disk(spec: Spec, tensors: list[Tensor]) -> Spec:
    """The description as another process reads it."""
    return check_spec(json.loads(json.dumps(spec)), [t.ndim for t in tensors])


@dataclass
class Derived:
    """A field that the constructor computes."""

    mean: Tensor
    gain: float = 2.0
    both: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.both = self.mean * self.gain

    def total(self) -> Tensor:
        """A method that reads it."""
        return self.both.sum() * self.gain


@dataclass(frozen=True)
class Frozen:
    """A constructor that would change what it is given again."""

    mean: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", self.mean * 3)


@dataclass(slots=True)
class Slotted:
    """State that is in slots."""

    mean: Tensor
    name: str = "slot"


class Items(OrderedDict):
    """A dictionary with attributes."""


def holder(**state: Any) -> types.SimpleNamespace:
    """A plain object."""
    return types.SimpleNamespace(**state)


def named(path: str, **more: Any) -> Spec:
    """An object of a class by its name, right but for that."""
    return {"class": path, "digest": "0", "state": {}, "items": []} | more
