"""Sizes calculate as numbers do, at every size that comes after the one that was captured."""

from __future__ import annotations

import copy
import dataclasses
import enum
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.capture.export_settings import exporting
from tvae.pipeline.errors import UnsupportedOp

SIZES = ((16, 12), (15, 20), (25, 14), (35, 9))
LETTERS = "abcdefgh"


class Known(enum.IntEnum):
    SMALL, LARGE = 16, 35


@dataclasses.dataclass
class Shape:
    height: Any
    width: Any


ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "divmod": lambda n, k: sum(divmod(n, k)) + sum(divmod(n, 3)) + sum(divmod(100, n)) + sum(divmod(n / 2, 3)),
    "inverted": lambda n, k: ~n + 2 * ~-k,
    "rounded to tens": lambda n, k: round(n, -1) + round(-n * 3, -2) + round(k, 0) + round(k, 1),
    "power of a modulus": lambda n, k: pow(n, 2, 7) + pow(k, 2),
    "parts of a number": lambda n, k: n.numerator + n.denominator + n.real + n.imag + k.conjugate(),
    "a comparison is True": lambda n, k: 2 if (n > k) is True else 3,
    "a comparison is 1": lambda n, k: 2 if (n > k) == 1 else 3,
    "a comparison as an index": lambda n, k: [2, 3][n > k] + {True: 5, False: 7}[n < 20],
    "a comparison calculates": lambda n, k: (n > k) / 2 + -(n > 20) + (n > 3) ** 2 + ((n > k) ^ (n != 16)) + ~(n > 20),
    "comparisons of fractions": lambda n, k: 2 if (n / 2 > k) is True else [3, 4][n / 3 == 5],
    "members of an enumeration": lambda n, k: (
        2 + (n == Known.SMALL) + 4 * (n in [*Known]) + n * Known.LARGE + (k < Known.SMALL)
    ),
    "numbers of NumPy's": lambda n, k: (
        2 + (n == np.int64(16)) + 4 * (np.float64(20) == k) + n * np.float64(0.5) + (np.int32(20) > n)
    ),
    "copies": lambda n, k: dataclasses.asdict(Shape(n, k))["height"] + copy.copy(k) + copy.deepcopy([n / 2])[0],
    "a digit": lambda n, k: LETTERS.index(LETTERS[n % 8]) + len(f"{n:b}"),
}


REFUSED_BEFORE = {"members of an enumeration"}
"""By PyTorch up to 2.12, whose sizes are no numbers to C code: an error then, and no wrong number."""


class Calculates(nn.Module):
    def __init__(self, fn: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.fn = nn.Conv2d(3, 4, 3, padding=1), fn

    def encode(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        return h * (1 + self.fn(h.shape[2], h.shape[3]))

    decode = encode


@torch.no_grad()
@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.filterwarnings("ignore:Bitwise inversion:DeprecationWarning")
def test_a_size_calculates_as_a_number(name: str) -> None:
    model = Calculates(ARITHMETIC[name]).eval()
    wide, tiled = copy.deepcopy(model).double(), TiledVAE(model, "cpu", strip=3, allow_whole=True)
    if name in REFUSED_BEFORE and torch.__version__ < (2, 13):
        with pytest.raises(UnsupportedOp, match="symbols to int"):
            tiled.encode(torch.randn(1, 3, *SIZES[0]))
        return
    for size in SIZES:
        x = torch.randn(1, 3, *size)
        want = wide.encode(x.double())
        assert float((tiled.encode(x) - want).norm() / want.norm()) < 1e-5, size


def test_in_this_thread_alone() -> None:
    names = ("__divmod__", "__rdivmod__", "__invert__", "__round__", "__pow__", "__lt__", "real", "denominator")
    places = [vars(kind) for kind in (torch.SymInt, torch.SymFloat)]
    before = [{name: place.get(name) for name in names} for place in places]
    size, found = torch.SymInt.__new__(torch.SymInt), list[Any]()

    def elsewhere() -> None:
        found.append(hasattr(size, "real"))
        for ask in (lambda: ~size, lambda: divmod(size, 2), lambda: divmod(2, size)):
            with pytest.raises(TypeError):
                ask()
        found.append("asked")

    with exporting():
        assert size.denominator == 1  # type: ignore[attr-defined]
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(20)
    assert found == [False, "asked"]
    assert [{name: place.get(name) for name in names} for place in places] == before
    assert not any("real" in place or "__divmod__" in place for place in places)
