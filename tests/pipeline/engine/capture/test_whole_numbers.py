"""``int`` and ``float`` of sizes in a model's code: one graph for every size, and nothing that stays changed."""

from __future__ import annotations

import contextlib
import copy
import math
import numbers
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from slow_but import slow_but
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.capture.whole_numbers import reads_numbers, sizes_stay_sizes
from tvae.pipeline.errors import UnsupportedOp


def scaled(n: int, by: float) -> int:
    return int(n * by)


def enlarged(h: Tensor) -> list[int]:
    """Calls a function that calls ``int``."""
    return [scaled(n, by=1.5) for n in h.shape[2:]]


class Sized(nn.Module):
    """Its parts are methods, which subclasses replace."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.window = nn.Conv2d(3, 4, 3, padding=1), 4

    def encode(self, x: Tensor) -> Tensor:
        return self.part(self.conv(x))

    decode = encode

    def part(self, h: Tensor) -> Tensor:
        return h


class Fractions(Sized):
    def part(self, h: Tensor) -> Tensor:
        return F.interpolate(h, size=(int(h.shape[2] * 0.75), int(h.shape[3] / 2)), mode="bilinear")


class Cubic(Sized):
    def part(self, h: Tensor) -> Tensor:
        return F.interpolate(h, size=[int(n * 0.85) for n in h.shape[2:]], mode="bicubic")


class Helpers(Sized):
    def part(self, h: Tensor) -> Tensor:
        return F.interpolate(h, size=enlarged(h))


class Windows(Sized):
    """Padded to whole windows."""

    def padding(self, h: Tensor) -> list[int]:
        height, width = (int(np.ceil(n / self.window)) * self.window for n in h.shape[2:])
        return [0, width - h.shape[3], 0, height - h.shape[2]]

    def part(self, h: Tensor) -> Tensor:
        return F.pad(h, self.padding(h))


class Roots(Sized):
    def part(self, h: Tensor) -> Tensor:
        count = h.shape[2] * h.shape[3]
        return h / int(math.sqrt(count)) + h / int(torch.sqrt(torch.tensor(count))) + h / math.sqrt(count)


class Positions(Sized):
    def part(self, h: Tensor) -> Tensor:
        return h + torch.arange(h.shape[2])[:, None] / float(h.shape[2])


class Halves(Sized):
    def part(self, h: Tensor) -> Tensor:
        half = int(torch.tensor(h.shape[2:])[0] // 2)
        return torch.cat([h[:, :, half:], h[:, :, :half]], 2)


class Asked(Sized):
    """A size is an ``int`` to a model."""

    def part(self, h: Tensor) -> Tensor:
        return h * 2 if isinstance(h.shape[2], int) else h * 3


class Typed(Sized):
    """And not only to ``isinstance``; what is computed of sizes is a ``float`` or a ``bool``."""

    def part(self, h: Tensor) -> Tensor:
        n: Any = h.shape[2]
        asked = (type(n) is int, type(n) in (int, float), type(n / 2) is float, isinstance(n, numbers.Integral))
        more = (isinstance(n, numbers.Number), isinstance(n > 5, bool), not isinstance(n, bool), type(h) is Tensor)
        more = (*more, type(self.conv.weight) is nn.Parameter)
        return h * sum(2**k for k, yes in enumerate((*asked, *more)) if yes)


class TypedHeight(Sized):
    """Also where ``int`` is Python's own, for a graph of one height."""

    def part(self, h: Tensor) -> Tensor:
        bits = int(h.shape[2]).bit_length()
        return h * bits if isinstance(h.shape[3], int) and type(h.shape[3]) is int else -h


def counting(n: int) -> int:
    """Keeps something on itself."""
    kept: Any = counting
    kept.last = getattr(kept, "last", 0) * 0 + int(n / 2)
    return int(kept.last)


class Marked(Sized):
    """A function that is compared with is itself."""

    def __init__(self) -> None:
        super().__init__()
        self.how: Any = scaled

    def part(self, h: Tensor) -> Tensor:
        own = self.how is scaled and "enlarged" in globals()
        return h * counting(h.shape[2]) if own else -h


class Yes(Sized):
    """Conditions on sizes as numbers."""

    def part(self, h: Tensor) -> Tensor:
        return h * float(h.shape[2] > 18) + int(h.shape[3] == 12)


class Powers(Sized):
    """A power of a size is no size: a graph for each height."""

    def part(self, h: Tensor) -> Tensor:
        return h * 2 ** int(h.shape[2] / 8)


class Text(Sized):
    """The number of digits is no size: a graph for each height."""

    def part(self, h: Tensor) -> Tensor:
        return h * len(f"{int(h.shape[2])}")


class Table(Sized):
    def part(self, h: Tensor) -> Tensor:
        return h * {16: 2.0, 21: 3.0}[int(h.shape[2])]


CUT = (Fractions, Cubic, Helpers, Windows, Roots, Positions, Halves, Asked, Typed, Yes)
SIZES = ((16, 12), (21, 20))


@torch.no_grad()
@pytest.mark.parametrize("kind", [*CUT, Text, Table, TypedHeight, Marked, Powers], ids=lambda kind: kind.__name__)
def test_the_models_own_numbers(kind: type[Sized]) -> None:
    model = kind().eval()
    wide = copy.deepcopy(model).double()
    tiled = TiledVAE(model, "cpu", strip=3, allow_whole=kind not in CUT)
    for size in SIZES:
        x = torch.randn(1, 3, *size)
        want = wide.encode(x.double())
        assert float((tiled.encode(x) - want).norm() / want.norm()) < 1e-5
        plan = tiled.plan((1, 3, *size), "encode")
        assert bool(plan.whole) is (kind not in CUT)
        assert plan.whole or plan.strips > 1


class Told(Sized):
    """Returns its size as a number of Python's own."""

    def encode(self, x: Tensor) -> Any:
        return {"z": self.conv(x), "rows": int(x.shape[2]) * 2}


@torch.no_grad()
def test_a_number_that_is_returned_is_the_one_of_this_size() -> None:
    model = Told().eval()
    tiled = TiledVAE(model, "cpu", allow_whole=True)
    for height in (16, 21):
        assert tiled.encode(torch.randn(1, 3, height, 12))["rows"] == 2 * height


class Global(Sized):
    """Writes a global, which a copy would write elsewhere."""

    def part(self, h: Tensor) -> Tensor:
        global SIZES
        SIZES = tuple(SIZES)
        return h * int(h.shape[1])


def test_what_is_not_copied() -> None:
    assert not reads_numbers(Global())
    assert not reads_numbers(Sized())
    assert not reads_numbers(nn.MultiheadAttention(4, 2))
    assert reads_numbers(nn.Sequential(Helpers()))


def test_a_method_of_the_object_itself_stays() -> None:
    model = Fractions()
    own = vars(model)["part"] = nn.Identity().forward
    with sizes_stay_sizes(model.modules()):
        assert vars(model)["part"] is own
    assert vars(model)["part"] is own


def test_only_this_thread_and_only_for_a_while() -> None:
    model, x = Fractions().eval(), torch.randn(1, 3, 8, 8)
    found: list[Any] = []
    with sizes_stay_sizes(model.modules()), torch.no_grad():
        assert "part" in vars(model)
        thread = threading.Thread(target=lambda: found.append(model.encode(x)))
        thread.start()
        thread.join(20)
        assert torch.equal(found[0], model.encode(x))
    assert "part" not in vars(model)
    assert model.part.__func__ is Fractions.part


def test_a_copy_of_the_model_that_is_made_at_the_time_of_a_capture() -> None:
    """It has nothing of the capture's. While the model is traced, its weights cannot be copied at all."""
    model, over, copies = Helpers().eval(), threading.Event(), list[Any]()

    def work() -> None:
        while not over.is_set():
            with contextlib.suppress(Exception):
                copies.append(copy.deepcopy(model))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with torch.no_grad():
            TiledVAE(model, "cpu", strip=3).encode(torch.randn(1, 3, 16, 12))
    finally:
        over.set()
        thread.join(20)
    assert copies
    assert not any("part" in vars(made) for made in copies)


ROUNDED: dict[str, tuple[bool, Callable[[Tensor], Any]]] = {
    "a third": (True, lambda h: torch.ceil(torch.tensor(h.shape[2]) / 3).item()),
    "a root": (True, lambda h: torch.floor(torch.tensor(h.shape[2]).sqrt()).item()),
    "one and a half": (True, lambda h: torch.ceil(torch.tensor(h.shape[2]) * 1.5).item()),
    "times 1.1": (False, lambda h: torch.ceil(torch.tensor(h.shape[2]) * 1.1).item()),
    "over 0.7": (False, lambda h: torch.floor(torch.tensor(h.shape[2]) / 0.7).item()),
    "three thirds": (False, lambda h: torch.ceil(torch.tensor(h.shape[2]) / 3 * 3).item()),
    "ten tenths": (False, lambda h: torch.floor(torch.tensor(h.shape[2]) / 10 * 10).item()),
    "a number of Python's": (False, lambda h: int((torch.tensor(h.shape[2]) / 3).item() * 3)),
}
"""And whether it runs."""
QUICK = ["a third", "a root", "times 1.1", "three thirds", "a number of Python's"]


class Rounded(Sized):
    def __init__(self, fn: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.fn = fn

    def part(self, h: Tensor) -> Tensor:
        return h * self.fn(h)


@pytest.mark.long
@torch.no_grad()
@pytest.mark.parametrize("name", slow_but(QUICK, ROUNDED))
def test_what_a_tensors_type_has_rounded_is_computed_with_nowhere_else(name: str) -> None:
    """100 * 1.1 is 110 in float32, and more than that in float64: it is refused, or the model's own number."""
    runs, fn = ROUNDED[name]
    model = Rounded(fn).eval()
    wide = copy.deepcopy(model).double()
    tiled = TiledVAE(model, "cpu", strip=3, allow_whole=True)
    for height in (100, 9, 50, 41, 90, 110, 7, 36) if runs else (100, 41, 7):
        x = torch.randn(1, 3, height, 4)
        if runs:
            want = wide.encode(x.double())
            assert float((tiled.encode(x) - want).norm() / want.norm()) < 1e-5, height
        else:
            with pytest.raises(UnsupportedOp):
                tiled.encode(x)
