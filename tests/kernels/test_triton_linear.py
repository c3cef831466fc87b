"""The Triton kernel of linear layers against float64, the rows that it takes as they lie, and what it refuses."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)
import interpreted  # noqa: F401  (before Triton)

from tvae.kernels import triton as level
from tvae.kernels.registry import Unsupported

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
module: Any = sys.modules[f"{level.__name__}.linear"]  # the package has a function of that name


def half(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).half().to(DEVICE)


def error(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> float:
    wanted = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    return float((y.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("shape", "outer"),
    [
        ((128, 64), 64),
        ((2, 3, 50, 96), 200),
        ((257, 8), 8),
        ((1, 300, 33), 5),
        ((140, 130), 129),
    ],
)
def test_is_the_product_of_float64(shape: tuple[int, ...], outer: int, bias: bool) -> None:
    x, weight, added = half(*shape), half(outer, shape[-1]), half(outer) if bias else None
    y = module.linear(x, weight, added)
    assert y.shape == (*shape[:-1], outer)
    assert y.is_contiguous()
    assert error(y, x, weight, added) < 2**-11


def test_rows_are_read_where_they_lie() -> None:
    """A picture with channels innermost, a strip of it, and columns of wider rows; the weight of a convolution."""
    picture = half(2, 20, 30, 48)[:, 3:19]
    weight = half(24, 48, 1, 1).contiguous(memory_format=torch.channels_last).flatten(1)
    for x in (picture[1], half(150, 64)[:, 8:56], half(150, 48)[::2].expand(2, 75, 48)[0].repeat(2, 1)):
        assert error(module.linear(x, weight, None), x, weight, None) < 2**-11


def test_a_weight_may_lie_in_any_order() -> None:
    x, weight = half(150, 48), half(48, 24).T
    assert error(module.linear(x, weight, None), x, weight, None) < 2**-11


def test_a_row_has_the_same_bits_wherever_it_lies() -> None:
    """Strips of any height give what the whole gives."""
    x, weight, bias = half(400, 72), half(40, 72), half(40)
    whole = module.linear(x, weight, bias)
    for begin, end in ((0, 128), (1, 300), (250, 400)):
        assert torch.equal(module.linear(x[begin:end], weight, bias), whole[begin:end])


def test_the_same_kernel_for_every_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compiled for nothing that depends on it; that the number is no part of that either is for GPU tests."""
    made: list[dict[str, Any]] = []

    class Seen(module.Repeated):  # type: ignore[misc,name-defined]
        def __init__(self, kernel: Any, grid: Any, numbers: Any, options: dict[str, Any], device: Any) -> None:
            made.append(options)
            super().__init__(kernel, grid, numbers, options, device)

    monkeypatch.setattr(module, "Repeated", Seen)
    for rows in (131, 1000, 4097, 5000):
        module._of_layout((rows, 56), (56, 1), (40, 56), torch.float16, torch.device(DEVICE), True)
    assert len(made) == 4
    assert all(options == made[0] for options in made)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: module.linear(half(200, 16).float(), half(8, 16).float(), None), id="float32"),
        pytest.param(lambda: module.linear(half(127, 16), half(8, 16), None), id="few rows"),
        pytest.param(lambda: module.linear(half(200, 16), half(8, 16).bfloat16(), None), id="another type"),
        pytest.param(lambda: module.linear(half(16, 200).T, half(8, 16), None), id="rows innermost"),
        pytest.param(lambda: module.linear(half(9, 40, 16)[:, :30], half(8, 16), None), id="uneven rows"),
        pytest.param(lambda: module.linear(half(200, 0), half(8, 0), None), id="nothing"),
        pytest.param(lambda: module.linear(half(200, 16), half(16), None), id="a vector"),
        pytest.param(lambda: module.linear(half(200, 16), half(8, 17), None), id="another width"),
        pytest.param(lambda: module.linear(half(200, 16).double(), half(8, 16).double(), None), id="float64"),
    ],
)
def test_what_is_not_taken_is_refused(call: Any) -> None:
    with pytest.raises(Unsupported):
        call()


def test_a_bias_of_another_length_is_told() -> None:
    with pytest.raises(ValueError, match="one value for each"):
        module.linear(half(200, 16), half(8, 16), half(9))


def _cut(x: Tensor, parts: Sequence[tuple[int, int]]) -> Tensor:
    for dim, (begin, step) in enumerate(parts):
        size = x.shape[dim]
        x = x.narrow(dim, min(begin, size - 1), size - min(begin, size - 1))
        index = [slice(None)] * dim + [slice(None, None, step)]
        x = x[tuple(index)]
    return x


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    parts=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2)), min_size=4, max_size=4),
    turned=st.booleans(),
)
def test_steps_between_rows_are_those_of_a_view(sizes: list[int], parts: list[tuple[int, int]], turned: bool) -> None:
    x = torch.arange(float(torch.tensor([*sizes, 3]).prod())).view(*sizes, 3)
    x = _cut(x.transpose(0, 1) if turned else x, parts[: len(sizes)])
    found = module.row_stride(x.shape, x.stride())
    try:
        rows = x.view(-1, 3)
    except RuntimeError:
        assert found is None
        return
    assert found is not None
    assert torch.equal(x.as_strided((len(rows), 3), (found, x.stride(-1)), x.storage_offset()), rows)
