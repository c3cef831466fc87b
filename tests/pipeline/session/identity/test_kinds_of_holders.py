"""What holds a model's constants besides dictionaries and objects of its own: a change there is seen."""

from __future__ import annotations

import functools
import sys
import types
from array import array
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from enum import Enum
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tvae.pipeline.session.identity.module_identity import identity_of

SPACE, INSIDE = types.SimpleNamespace(gain=1.0), types.SimpleNamespace(table={"gain": 1.0})
PACKED, VIEWED = array("f", [1.0]), memoryview(bytearray(b"\x01"))
CONTEXT: ContextVar[Any] = ContextVar("gain", default=1.0)
SHIFT = torch.ones(3, 1, 1)
HELD: ContextVar[Any] = ContextVar("shift", default=SHIFT)
LAZY = types.ModuleType("lazy_constants")
STEPS = {"gain": 1.0}
BELOW = {"gain": 1.0, "other": 3.0}
SHOWN = types.MappingProxyType(BELOW)
PARTLY = functools.partial(float, 1.0)


class Unready:
    """Like those of pydantic that stand for a validator to come."""

    __slots__ = ("gain",)

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("not ready")


UNREADY = Unready()
UNREADY.gain = 1.0


class Meta(type):
    gain = 1.0


class OfMeta(metaclass=Meta):
    pass


class One:
    gain = 1.0


class Three:
    gain = 3.0


class Based(One):
    pass


class Kind(Enum):
    ONE = 1.0


@functools.singledispatch
def gain_of(x: Any) -> Any:
    return 1.0


@gain_of.register(str)
def _(x: str) -> Any:
    return STEPS["gain"]


class Gained(nn.Module):
    def __init__(self, fn: Callable[[], Any]) -> None:
        super().__init__()
        self.conv, self.fn = nn.Conv2d(3, 3, 1), fn

    def encode(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.conv(x) * self.fn())


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a name space": (lambda: SPACE.gain, lambda n: setattr(SPACE, "gain", n)),
    "inside of one": (lambda: INSIDE.table["gain"], lambda n: INSIDE.table.update(gain=n)),
    "an array of Python's": (lambda: PACKED[0], lambda n: PACKED.__setitem__(0, n)),
    "a view of memory": (lambda: VIEWED[0], lambda n: VIEWED.__setitem__(0, int(n))),
    "a variable of a context": (lambda: CONTEXT.get(), lambda n: CONTEXT.set(n)),
    "a tensor in a context": (lambda: HELD.get(), lambda n: HELD.get().fill_(n)),
    "of attributes that raise": (lambda: UNREADY.gain, lambda n: setattr(UNREADY, "gain", n)),
    "a module's own names": (lambda: LAZY.gain, lambda n: vars(LAZY)["KEPT"].update(gain=n)),
    "a function by class": (lambda: gain_of(3), lambda n: gain_of.register(int, lambda _: n)),
    "a class of classes": (lambda: OfMeta.gain, lambda n: setattr(Meta, "gain", n)),
    "a member of an enumeration": (lambda: Kind.ONE.value, lambda n: setattr(Kind.ONE, "_value_", n)),
    "a view of a dictionary": (lambda: SHOWN["gain"], lambda n: BELOW.update(gain=n)),
    "the order in one": (lambda: next(iter(SHOWN.values())), lambda n: BELOW.update(gain=BELOW.pop("gain"))),
    "a function with arguments": (lambda: PARTLY(), lambda n: PARTLY.__setstate__((float, (n,), {}, None))),  # type: ignore[attr-defined]
    "bases of a class": (lambda: Based.gain, lambda n: setattr(Based, "__bases__", (Three,))),
    "what such a function asks": (lambda: gain_of("x"), lambda n: STEPS.update(gain=n)),
}


@pytest.fixture(autouse=True)
def module_with_getattr(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    vars(LAZY)["KEPT"] = {"gain": 1.0}
    exec("def __getattr__(name):\n    return KEPT[name]", vars(LAZY))
    monkeypatch.setitem(sys.modules, "lazy_constants", LAZY)
    yield
    CONTEXT.set(1.0)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name: str) -> None:
    fn, change = CHANGES[name]
    model = Gained(fn).eval()
    first = identity_of(model)
    assert first.unchanged()
    assert first.portable, first.why
    change(3.0)
    assert not first.unchanged()
    second = identity_of(model)
    assert second.digest != first.digest
    assert second.unchanged()
