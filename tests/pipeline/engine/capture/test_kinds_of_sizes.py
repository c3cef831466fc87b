"""What a model takes a size for: an ``int`` in whatever way it asks, or a refusal that names the function."""

from __future__ import annotations

import copy
import numbers
import sys
import threading
from collections.abc import Callable
from typing import Any

import asking_functions
import pytest
import torch
from asking_functions import TABLE, Asker
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.capture.export_settings import exporting
from tvae.pipeline.engine.capture.types_of_sizes import refusing_types
from tvae.pipeline.engine.capture.whole_numbers import Names
from tvae.pipeline.errors import UnsupportedOp

SIZES = ((16, 12), (21, 20), (9, 14))
ASKER, MAPPED = Asker(), {int: 2}
TABLE["single dispatch"].register(int, lambda n: 2)  # type: ignore[attr-defined]
NUMBERS = (int, float)


class Asks(nn.Module):
    """Multiplies by what a function gives of a size, 2 where that is an ``int``."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.fn = nn.Conv2d(3, 4, 3, padding=1), fn
        self.cache: dict[Any, Tensor] = {}

    def encode(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        return h * self.fn(self, h)

    decode = encode


def matched_literal(_m: Any, h: Tensor) -> int:
    match h.shape[2]:
        case 16:
            return 2
        case 21:
            return 3
    return 4


def matched_union(_m: Any, h: Tensor) -> int:
    match h.shape[2]:
        case float() | int():
            return 2
    return 3


def matched_inside(_m: Any, h: Tensor) -> Any:
    match {"shape": tuple(h.shape)}:
        case {"shape": (int(), 4, int() as height, int(width))}:
            return height + width
    return 3


def matched_fraction(_m: Any, h: Tensor) -> int:
    match h.shape[2] / 2:
        case int():
            return 3
        case float():
            return 2
    return 4


def imported(_m: Any, h: Tensor) -> int:
    from asking_functions import asked

    return asked(h.shape[2])


def of_an_object(_m: Any, h: Tensor) -> int:
    return ASKER(h.shape[2]) + Asker().asks(h.shape[3]) + Asker.of_none(h.shape[2]) + Asker.of_a_class(h.shape[2])


def nested(_m: Any, h: Tensor) -> int:
    def inner(n: Any) -> int:
        return 2 if isinstance(n, NUMBERS) else 3

    return inner(h.shape[2])


def of_a_class(_m: Any, h: Tensor) -> int:
    n: Any = h.shape[2]
    asked = (n.__class__ is int, isinstance(n, numbers.Integral), isinstance(n > 5, bool), not isinstance(n, bool))
    return sum(2**k for k, yes in enumerate((*asked, isinstance(n / 2, numbers.Real))) if yes)


def as_text(_m: Any, h: Tensor) -> int:
    return int(eval("2 if isinstance(h.shape[2], int) else 3"))


def kept_by_size(m: Any, h: Tensor) -> Tensor:
    key = h.shape[2], h.shape[3]
    if key not in m.cache:
        m.cache[key] = torch.arange(key[0])[:, None] / key[0]
    return m.cache[key].to(h)


def in_a_set(_m: Any, h: Tensor) -> int:
    return 2 if h.shape[2] in {16, 32} else 3


RIGHT: dict[str, Callable[[Any, Tensor], Any]] = {
    **{f.__name__: f for f in (matched_literal, matched_union, matched_inside, matched_fraction, imported, nested)},
    **{f.__name__: f for f in (of_an_object, of_a_class, as_text, kept_by_size, in_a_set)},
    **{name: lambda _m, h, name=name: TABLE[name](h.shape[2]) for name in TABLE},
    "a module's": lambda _m, h: asking_functions.asked(h.shape[2]) + asking_functions.matched(h.shape[2]),
    "handed on": lambda _m, h: sum(map(asking_functions.asked, h.shape)),
    "of other things": lambda _m, h: sum(asking_functions.unsized(3)) + h.shape[2],
}


def imported_typed(_m: Any, h: Tensor) -> int:
    from asking_functions import typed

    return typed(h.shape[2])


def typed_of_a_tensor(_m: Any, h: Tensor) -> int:
    return 2 if type(h) is Tensor else 3


REFUSED: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "a module's": (lambda _m, h: asking_functions.typed(h.shape[2]), "asking_functions.typed()"),
    "handed on": (lambda _m, h: sum(map(asking_functions.typed, h.shape)), "asking_functions.typed()"),
    "looked up": (lambda _m, h: MAPPED.get(type(h.shape[2]), 3), "<lambda>()"),
    "typed": (lambda _m, h: 2 if type(h.shape[2]) in NUMBERS else 3, "<lambda>()"),
    "imported": (imported_typed, "asking_functions.typed()"),
    "as text": (lambda _m, h: int(eval("2 if type(h.shape[2]) is int else 3")), "<module>()"),
    "a tensor": (typed_of_a_tensor, "typed_of_a_tensor()"),
}


@torch.no_grad()
@pytest.mark.parametrize("name", RIGHT)
def test_a_size_is_an_int(name: str) -> None:
    model = Asks(RIGHT[name]).eval()
    wide, tiled = copy.deepcopy(model).double(), TiledVAE(model, "cpu", strip=3, allow_whole=True)
    for size in SIZES:
        x = torch.randn(1, 3, *size)
        want = wide.encode(x.double())
        assert float((tiled.encode(x) - want).norm() / want.norm()) < 1e-5, size


@torch.no_grad()
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_answered_is_refused_by_name(name: str) -> None:
    fn, who = REFUSED[name]
    with pytest.raises(UnsupportedOp, match="use isinstance") as caught:
        TiledVAE(Asks(fn).eval(), "cpu", strip=3, allow_whole=True).encode(torch.randn(1, 3, 16, 12))
    assert who in str(caught.value)


def named(n: Any, kinds: Any = int) -> str:
    return f"{type(n).__name__} {type(n)()} {isinstance(n, kinds)} {type(n)}"


def test_types_that_are_only_shown_or_called_are_not_looked_for() -> None:
    with refusing_types([named], Names):
        assert sys.getprofile() is None
    looks = refusing_types([typed_of_a_tensor], Names)
    looks.__enter__()
    assert sys.getprofile() is not None
    with torch._subclasses.FakeTensorMode():
        typed_of_a_tensor(None, torch.zeros(2))
    with pytest.raises(UnsupportedOp, match="typed_of_a_tensor"):
        looks.__exit__(None, None, None)
    assert sys.getprofile() is None


def test_in_this_thread_and_to_models_alone() -> None:
    kinds, own = (torch.SymInt, torch.SymFloat, torch.SymBool), object.__getattribute__
    size = torch.SymInt.__new__(torch.SymInt)
    found: list[Any] = []
    with exporting():
        assert isinstance(size, int)
        assert isinstance(size, torch.SymInt)
        assert type(size) is torch.SymInt
        thread = threading.Thread(target=lambda: found.append((isinstance(size, int), size.__class__)))
        thread.start()
        thread.join(20)
    assert found == [(False, torch.SymInt)]
    assert not isinstance(size, int)
    assert all(kind.__getattribute__ is own and "__getattribute__" not in vars(kind) for kind in kinds)
