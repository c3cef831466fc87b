"""The Triton kernels of narrow convolutions against float64, in bands and strips, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)
import interpreted  # noqa: F401  (before Triton)
from kernel_inputs import channels_last

from tvae.kernels import workspace
from tvae.kernels.check import deviation
from tvae.kernels.operations.conv_from_few import case, conv_from_few
from tvae.kernels.operations.conv_to_few import conv_to_few
from tvae.kernels.oracle import Oracle
from tvae.kernels.registry import Unsupported
from tvae.kernels.triton import narrow
from tvae.kernels.triton.launch import Tuning

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PADS = [(1, 1, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0), (0, 0, 0, 0), (2, 0, 1, 1)]


@pytest.fixture(autouse=True)
def small_tiles() -> Iterator[None]:
    """So that a few pixels are many tiles and bands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(narrow, "FROM", Tuning(tile_bytes=16 * 16 * 2, warps=4, per_sm=1, stages=1))
        patch.setattr(narrow, "TO", Tuning(tile_bytes=16 * 16 * 2, warps=4, per_sm=1, stages=1))
        patch.setattr(workspace, "BAND", 50)
        yield


def half(*shape: int, last: bool = True) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).half()
    return (channels_last(x) if last else x).to(DEVICE)


def error(y: Tensor, wanted: Tensor) -> float:
    return ((y.double() - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("pads", PADS)
@pytest.mark.parametrize("last", [True, False])
def test_from_few_in_strips_and_layouts(pads: tuple[int, ...], last: bool) -> None:
    """The picture is read where it lies; statistics are of the result."""
    x, weight, bias = half(2, 3, 9, 7, last=last), half(20, 3, 3, 3, last=False), half(20, last=False)
    wanted, _ = conv_from_few(x.double(), weight.double(), bias.double(), pads, None, False)
    y, parts = narrow.conv_from_few(x, weight, bias, pads, None, True)
    assert error(y, wanted) < 2**-11
    assert parts is not None
    count, mean, m2 = parts.unbind(2)
    size = wanted[0, 0].numel()
    assert (count.sum(1) == size).all()
    whole = (count * mean).sum(1) / size
    assert torch.allclose(whole, y.double().mean((2, 3)), atol=1e-6)
    spread = (m2 + count * (mean - whole[:, None]).square()).sum(1) / size
    assert torch.allclose(spread, y.double().var((2, 3), correction=0), rtol=1e-5)


@pytest.mark.parametrize("pads", PADS)
@pytest.mark.parametrize("act", [None, "silu"])
def test_to_few_in_strips(pads: tuple[int, ...], act: str | None) -> None:
    """Bands of a few rows, strips whose border is none, a norm whose border stays zero."""
    x, weight, bias, affine = half(2, 40, 9, 7), half(3, 40, 3, 3), half(3, last=False), half(2, 2, 40, last=False)
    wanted = conv_to_few(x.double(), weight.double(), bias.double(), pads, affine.double(), act)
    assert error(narrow.conv_to_few(x, weight, bias, pads, affine.float(), act), wanted) < 2**-10


def test_to_the_mean_and_the_spread_of_four_channels() -> None:
    """As an encoder ends: 72 products a value."""
    x, weight, bias = half(1, 40, 9, 7), half(8, 40, 3, 3), half(8, last=False)
    wanted = conv_to_few(x.double(), weight.double(), bias.double(), (1, 1, 1, 1), None, None)
    assert error(narrow.conv_to_few(x, weight, bias, (1, 1, 1, 1), None, None), wanted) < 2**-10


def test_rows_of_a_larger_map() -> None:
    big, weight = half(1, 32, 12, 6), half(3, 32, 3, 3)
    x = big[:, :, 3:9]
    wanted = conv_to_few(x.double(), weight.double(), None, (1, 1, 1, 1), None, None)
    assert error(narrow.conv_to_few(x, weight, None, (1, 1, 1, 1), None, None), wanted) < 2**-10


@pytest.mark.parametrize("size", [1, 3])
def test_kernels_of_other_sizes(size: int) -> None:
    pads = (size // 2,) * 4
    x, weight = half(1, 4, 6, 5), half(32, 4, size, size)
    wanted, _ = conv_from_few(x.double(), weight.double(), None, pads, None, False)
    assert error(narrow.conv_from_few(x, weight, None, pads, None, False)[0], wanted) < 2**-11


def test_into_a_part_of_a_buffer() -> None:
    oracle = Oracle(torch.float16, torch.device(DEVICE))
    assert deviation(case(oracle, "", 1, 3, 24, 8, 8, into=True), narrow.conv_from_few).passed


def refused() -> list[Any]:
    x, weight = half(1, 3, 6, 5), half(32, 3, 3, 3)
    wide, back = half(1, 32, 6, 5), half(3, 32, 3, 3)
    around = (1, 1, 1, 1)
    return [
        pytest.param(lambda: narrow.conv_from_few(x.float(), weight.float(), None, around, None, False), id="float32"),
        pytest.param(lambda: narrow.conv_from_few(x, weight.float(), None, around, None, False), id="other weights"),
        pytest.param(lambda: narrow.conv_from_few(wide, half(8, 32, 3, 3), None, around, None, False), id="many"),
        pytest.param(lambda: narrow.conv_from_few(x[:, :, :0], weight, None, around, None, False), id="empty"),
        pytest.param(lambda: narrow.conv_to_few(wide.contiguous(), back, None, around, None, None), id="planes"),
        pytest.param(lambda: narrow.conv_to_few(wide, half(32, 32, 3, 3), None, around, None, None), id="to many"),
    ]


@pytest.mark.parametrize("call", refused())
def test_what_is_left_to_the_definition(call: Any) -> None:
    with pytest.raises(Unsupported):
        call()
