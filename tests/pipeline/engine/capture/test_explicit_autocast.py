"""Models that switch ``torch.autocast`` by functions, which the exporter does not see."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn, set_autocast_enabled

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UnsupportedOp

Part = Callable[[Any, Tensor], Tensor]


class Switches(nn.Module):
    def __init__(self, part: Part) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.conv, self.part = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), part

    def encode(self, x: Tensor) -> Tensor:
        return self.part(self, self.first(x))

    decode = encode


@pytest.fixture(autouse=True)
def afterwards() -> Iterator[None]:
    yield
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_dtype("cpu", torch.bfloat16)


def switched_on(m: Any, h: Tensor) -> Tensor:
    torch.set_autocast_enabled("cpu", True)
    y: Tensor = m.conv(h)
    torch.set_autocast_enabled("cpu", False)
    return y


def imported(m: Any, h: Tensor) -> Tensor:
    set_autocast_enabled("cpu", True)
    y: Tensor = m.conv(h)
    set_autocast_enabled("cpu", False)
    return y


def of_old(m: Any, h: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_autocast_cpu_enabled(True)
        y: Tensor = m.conv(h)
        torch.set_autocast_cpu_enabled(False)
    return y


def off_within(m: Any, h: Tensor) -> Tensor:
    with torch.autocast("cpu", cache_enabled=False):
        torch.set_autocast_enabled("cpu", False)
        y: Tensor = m.conv(h)
        torch.set_autocast_enabled("cpu", True)
        return y


def on_within(m: Any, h: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        torch.set_autocast_enabled("cpu", True)
        y: Tensor = m.conv(h)
        return y


def other_type_within(m: Any, h: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        torch.set_autocast_dtype("cpu", torch.float16)
        y: Tensor = m.conv(h)
        return y


def as_it_was(m: Any, h: Tensor) -> Tensor:
    before = torch.is_autocast_enabled("cpu")
    torch.set_autocast_enabled("cpu", False)
    y: Tensor = m.conv(h)
    torch.set_autocast_enabled("cpu", before)
    return y


def type_of_a_region(m: Any, h: Tensor) -> Tensor:
    torch.set_autocast_dtype("cpu", torch.float16)
    with torch.autocast("cpu"):
        y: Tensor = m.conv(h)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    return y


def asked(m: Any, h: Tensor) -> Tensor:
    with torch.autocast("cpu"):
        y: Tensor = m.conv(h) * (2 if torch.is_autocast_enabled("cpu") else 3)
    return y


UNSEEN = (switched_on, imported, of_old, off_within, on_within, other_type_within)
SEEN = (as_it_was, type_of_a_region, asked)


@torch.no_grad()
@pytest.mark.parametrize("part", UNSEEN, ids=lambda part: part.__name__)
def test_what_no_region_says_is_refused_by_name(part: Part) -> None:
    model = Switches(part).eval()
    with pytest.raises(UnsupportedOp, match=r"torch\.set_autocast_enabled.*with torch\.autocast"):
        TiledVAE(model, "cpu", strip=3).encode(torch.randn(1, 3, 16, 12))


@torch.no_grad()
@pytest.mark.parametrize("part", SEEN, ids=lambda part: part.__name__)
def test_what_a_region_says_is_run(part: Part) -> None:
    model = Switches(part).eval()
    tiled = TiledVAE(model, "cpu", strip=3)
    # processors that compute in float16 round a strip's sums otherwise; bfloat16 in its place would differ by 2e-3
    most = 4e-4 if part is type_of_a_region else 1e-5
    for size in ((16, 12), (21, 20)):
        x = torch.randn(1, 3, *size)
        got, want = tiled.encode(x), model.encode(x)
        assert got.dtype == want.dtype
        assert float((got - want).float().norm() / want.float().norm()) < most
