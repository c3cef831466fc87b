"""The Triton kernel of borders and enlargement against the definitions, and what it refuses."""

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

from tvae.kernels.operations.enlarge import enlarge
from tvae.kernels.operations.pad import pad
from tvae.kernels.registry import Unsupported
from tvae.kernels.triton import spread
from tvae.kernels.triton.launch import Tuning

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def small_tiles() -> Iterator[None]:
    """So that a few pixels are many tiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spread, "SPREAD", Tuning(tile_bytes=256, warps=4, per_sm=2, stages=1))
        yield


def clip(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return channels_last(torch.randn(shape, generator=generator).to(dtype)).to(DEVICE)


@pytest.mark.parametrize(
    ("shape", "amounts"),
    [
        ((1, 8, 5, 7), (0, 1, 0, 1)),
        ((2, 3, 6, 4), (2, 1, 1, 3)),
        ((1, 17, 3, 5, 4), (1, 1, 1, 1, 2, 0)),
        ((2, 8, 9), (2, 3)),
        ((1, 4, 3, 6, 5), (2, 0)),
    ],
)
@pytest.mark.parametrize("mode", ["constant", "replicate", "reflect"])
def test_borders_are_the_definitions_bits(shape: tuple[int, ...], amounts: tuple[int, ...], mode: str) -> None:
    x = clip(*shape)
    if mode == "reflect" and shape[2] <= 3 and len(amounts) == 6:
        amounts = (1, 1, 1, 1, 2, 0)
    if mode != "constant" and len(amounts) != 2 * (len(shape) - 2):
        pytest.skip("PyTorch's own replicates and reflects all spatial dimensions or none")
    y = spread.pad(x, amounts, mode, None, None)
    assert torch.equal(y, pad(x, amounts, mode, None, None))
    assert y.stride(1) == 1


def test_bands_of_rows_are_read_where_they_lie() -> None:
    x = clip(2, 8, 3, 9, 4)[:, :, :, 2:7]
    y = spread.pad(x, (1, 1, 1, 1, 2, 0), "replicate", None, None)
    assert torch.equal(y, pad(x, (1, 1, 1, 1, 2, 0), "replicate", None, None))


@pytest.mark.parametrize("act", [None, "silu"])
@pytest.mark.parametrize("mode", ["constant", "replicate"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_norm_on_the_way(mode: str, act: str | None, dtype: torch.dtype) -> None:
    """Zeros stay zeros: it is the normalised map that has the border."""
    x, affine = clip(2, 8, 3, 5, 4, dtype=dtype), clip(2, 2, 8)
    y = spread.pad(x, (1, 1, 1, 1, 2, 0), mode, affine, act)
    wanted = pad(x.double(), (1, 1, 1, 1, 2, 0), mode, affine.double(), act)
    assert ((y.double() - wanted).norm() / wanted.norm()).item() < (1e-6 if dtype == torch.float32 else 2**-11)
    if mode == "constant":
        assert not y[:, :, :2].any()


@pytest.mark.parametrize(
    ("shape", "factors"), [((1, 8, 5, 7), (2, 2)), ((2, 3, 3, 4, 5), (1, 2, 2)), ((1, 5, 4), (3,))]
)
def test_enlarged_pixels_are_the_definitions_bits(shape: tuple[int, ...], factors: tuple[int, ...]) -> None:
    x = clip(*shape)
    assert torch.equal(spread.enlarge(x, factors), enlarge(x, factors))


def refused() -> list[Any]:
    x = clip(1, 8, 4, 4)
    return [
        pytest.param(lambda: spread.pad(x.contiguous(), (1, 1), "constant", None, None), id="channels not innermost"),
        pytest.param(lambda: spread.pad(x, (1, 1, 1, 1, 1, 1), "constant", None, None), id="channels padded"),
        pytest.param(lambda: spread.pad(x, (-1, 1, 0, 0), "replicate", None, None), id="cropped"),
        pytest.param(lambda: spread.pad(x[:, :, :0], (1, 1, 1, 1), "constant", None, None), id="empty"),
        pytest.param(lambda: spread.pad(x.double(), (1, 1, 1, 1), "constant", None, None), id="float64"),
        pytest.param(lambda: spread.enlarge(x[..., :0], (2, 2)), id="nothing to enlarge"),
    ]


@pytest.mark.parametrize("call", refused())
def test_what_is_left_to_the_definition(call: Any) -> None:
    with pytest.raises(Unsupported):
        call()


def test_wrong_arguments_are_named() -> None:
    x = clip(1, 8, 4, 4)
    with pytest.raises(ValueError, match="modes"):
        spread.pad(x, (1, 1), "circular", None, None)
    with pytest.raises(ValueError, match="reflection"):
        spread.pad(x, (4, 0, 0, 0), "reflect", None, None)
    with pytest.raises(ValueError, match="factors"):
        spread.enlarge(x, (2,))
    with pytest.raises(ValueError, match="affine"):
        spread.pad(x, (1, 1), "constant", clip(2, 1, 4), None)
