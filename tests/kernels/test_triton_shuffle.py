"""The Triton kernel of repeated channels as pixels against the definition, and what it refuses."""

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

from tvae.kernels.operations.shuffle_up import shuffle_up
from tvae.kernels.registry import Unsupported
from tvae.kernels.triton import shuffle
from tvae.kernels.triton.launch import Tuning

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def small_tiles() -> Iterator[None]:
    """So that a few pixels are many tiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffle, "SHUFFLE", Tuning(tile_bytes=256, warps=4, per_sm=2, stages=1))
        yield


def a_map(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return channels_last(torch.randn(shape, generator=generator).to(dtype)).to(DEVICE)


CALLS = [
    ((1, 8, 5, 7), (2, 2), 8),
    ((1, 8, 5, 7), (2, 2), 4),
    ((2, 6, 3, 4), (2, 2), 3),
    ((2, 12, 2, 3, 4), (2, 2, 2), 12),
    ((1, 8, 2, 3, 4), (1, 2, 2), 4),
    ((1, 6, 2, 3, 4), (1, 2, 3), 2),
    ((1, 4, 3, 5), (2, 2), 1),
    ((1, 4, 3, 5), (2, 2), 8),
    ((1, 6, 5), (2,), 9),
]
"""Shape, factors, channels."""


@pytest.mark.parametrize(("shape", "factors", "channels"), CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pixels_are_the_definitions_bits(
    shape: tuple[int, ...], factors: tuple[int, ...], channels: int, dtype: torch.dtype
) -> None:
    x = a_map(*shape, dtype=dtype)
    y = shuffle.shuffle_up(x, factors, channels, None)
    assert torch.equal(y, shuffle_up(x, factors, channels, None))
    assert y.stride(1) == 1 or channels == 1
    other = a_map(*y.shape, dtype=dtype)
    y, wanted = shuffle.shuffle_up(x, factors, channels, other), shuffle_up(x, factors, channels, other)
    if dtype == torch.bfloat16 and DEVICE == "cpu":  # Triton's interpreter cuts off where it should round
        assert ((y - wanted).abs() <= 2**-7 * wanted.abs()).all()
    else:
        assert torch.equal(y, wanted)


@pytest.mark.parametrize(("shape", "factors", "channels"), CALLS)
def test_a_part_of_the_result(shape: tuple[int, ...], factors: tuple[int, ...], channels: int) -> None:
    """Along each dimension, beginning and ending between the pixels that become of one."""
    x = a_map(*shape)
    for dim, factor in enumerate(factors):
        part = dim, factor - 1, factor * shape[2 + dim] - factor // 2
        y = shuffle.shuffle_up(x, factors, channels, None, part)
        assert torch.equal(y, shuffle_up(x, factors, channels, None).narrow(2 + dim, part[1], part[2] - part[1]))
        assert y.movedim(1, -1).is_contiguous()
        other = a_map(*y.shape)
        wanted = shuffle_up(x, factors, channels, other, part)
        assert torch.equal(shuffle.shuffle_up(x, factors, channels, other, part), wanted)
        assert torch.equal(wanted, y + other)


def test_rows_of_larger_maps() -> None:
    """Neither input lies in one piece."""
    x, other = a_map(2, 8, 2, 9, 4)[:, :, :, 2:6], a_map(2, 4, 2, 12, 8)[:, :, :, 1:9]
    assert torch.equal(shuffle.shuffle_up(x, (1, 2, 2), 4, other), shuffle_up(x, (1, 2, 2), 4, other))


def test_the_definition_is_the_models_own() -> None:
    x = a_map(2, 6, 3, 4)
    assert torch.equal(shuffle_up(x, (2, 2), 3, None), torch.pixel_shuffle(x.repeat_interleave(2, 1), 2))


def refused() -> list[Any]:
    x = a_map(1, 8, 4, 4)
    other = a_map(1, 8, 8, 8)
    return [
        pytest.param(lambda: shuffle.shuffle_up(x.contiguous(), (2, 2), 8, None), id="channels not innermost"),
        pytest.param(lambda: shuffle.shuffle_up(x, (2, 2), 8, other.contiguous()), id="nor those of the sum"),
        pytest.param(lambda: shuffle.shuffle_up(x, (2, 2), 8, other.bfloat16()), id="two types"),
        pytest.param(lambda: shuffle.shuffle_up(x[..., :0], (2, 2), 8, None), id="empty"),
        pytest.param(lambda: shuffle.shuffle_up(x, (2, 2), 8, None, (0, 3, 3)), id="no row"),
        pytest.param(lambda: shuffle.shuffle_up(x.double(), (2, 2), 8, None), id="float64"),
    ]


@pytest.mark.parametrize("call", refused())
def test_what_is_left_to_the_definition(call: Any) -> None:
    with pytest.raises(Unsupported):
        call()


@pytest.mark.parametrize("run", [shuffle.shuffle_up, shuffle_up])
def test_wrong_arguments_are_named(run: Any) -> None:
    x = a_map(1, 8, 4, 4)
    with pytest.raises(ValueError, match="3 channels"):
        run(x, (2, 2), 3, None)
    with pytest.raises(ValueError, match="enlarged"):
        run(x, (2,), 8, None)
    if run is not shuffle_up:
        with pytest.raises(ValueError, match="added"):
            run(x, (2, 2), 8, x)
        for part in ((0, 3, 2), (0, 0, 9), (1, -1, 2)):
            with pytest.raises(ValueError, match=r"among 8"):
                run(x, (2, 2), 8, None, part)
