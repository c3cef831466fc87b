"""Convolutions that are computed otherwise than PyTorch would: the same numbers, and the same ones every time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from tvae.kernels import Kernels
from tvae.pipeline.engine.rules import convolution
from tvae.pipeline.engine.rules.convolution import CONV_T, _phases, as_product, convolution_in


def pair(low: int, high: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(low, high), min_size=2, max_size=2)


@given(st.data())
def test_phases_are_a_transposed_convolution(data: Any) -> None:
    draw = data.draw
    stride, kernel, size = draw(pair(1, 3)), draw(pair(1, 5)), draw(pair(1, 6))
    padding = [draw(st.integers(0, k - 1)) for k in kernel]
    extra = [draw(st.integers(0, s - 1)) for s in stride]
    sizes = zip(size, stride, padding, kernel, extra, strict=True)
    assume(all((n - 1) * s - 2 * p + k + e > 0 for n, s, p, k, e in sizes))
    random = torch.Generator().manual_seed(draw(st.integers(0, 9)))
    x, weight, bias = (torch.randn(*s, generator=random).double() for s in ((2, 3, *size), (3, 5, *kernel), (5,)))
    if draw(st.booleans()):
        x, weight = (t.contiguous(memory_format=torch.channels_last) for t in (x, weight))
    given_bias = bias if draw(st.booleans()) else None
    want = F.conv_transpose2d(x, weight, given_bias, stride, padding, extra)
    found = _phases(x, weight, given_bias, stride, padding, extra)
    torch.testing.assert_close(found, want, rtol=0, atol=1e-13)
    assert found.is_contiguous()


@given(
    shape=st.tuples(*(st.integers(1, 5) for _ in range(4))),
    cut=st.integers(0, 3),
    dim=st.sampled_from([2, 2, 3]),
    last=st.booleans(),
    bias=st.booleans(),
)
def test_single_taps_are_a_matrix_product(shape: tuple[int, ...], cut: int, dim: int, last: bool, bias: bool) -> None:
    random = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=random).double()
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    cut = min(cut, shape[dim] - 1)
    x = x.narrow(dim, cut, shape[dim] - cut)  # a strip's rows, or columns
    weight, shift = torch.randn(6, shape[1], 1, 1, generator=random).double(), torch.arange(6.0).double()
    given_bias = shift if bias else None
    asked: list[tuple[int, ...]] = []

    class Told(Kernels):
        def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # type: ignore[override]
            asked.append(x.shape)
            return super().linear(x, weight, bias)

    y = as_product(Told(), x, weight, given_bias)
    assert asked in ([], [] if y is None else [(y[:, 0].numel(), shape[1])])
    assert asked or y is None or shape[0] > 1, "one picture is one product"
    assert (y is not None) or not last or shape[1] == 1 or dim == 3, "rows of pictures need no copy"
    if y is not None:
        torch.testing.assert_close(y, F.conv2d(x, weight, given_bias), rtol=0, atol=1e-13)
        assert y.stride(1) == 1


def test_some_rows_of_each_frame_are_multiplied_where_they_lie() -> None:
    """A clip's shortcut in a strip: PyTorch's convolution would copy all of it."""
    x = torch.randn(2, 4, 3, 9, 5).double().to(memory_format=torch.channels_last_3d)[:, :, :, 2:7]
    weight, bias = torch.randn(6, 4, 1, 1, 1).double(), torch.randn(6).double()
    frames = x[:1].transpose(1, 2).flatten(0, 1)
    y = as_product(Kernels(), frames, weight[:, :, 0], bias)
    assert y is not None
    torch.testing.assert_close(y, F.conv3d(x[:1], weight, bias)[0].transpose(0, 1), rtol=0, atol=1e-13)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "_is_product", lambda _x, taps, *_more: taps.shape[2:] == (1, 1))
        patch.setattr(convolution, "conv2d", None)  # not called
        found = convolution_in(3, Kernels())(x, weight, bias, [1, 1, 1], [0, 0, 0], [1, 1, 1], 1)
    torch.testing.assert_close(found, F.conv3d(x, weight, bias), rtol=0, atol=1e-13)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_product_of_rows_is_as_exact_as_a_convolution(dtype: torch.dtype, with_bias: bool) -> None:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(1, 256, 4, 46, 80, generator=random).to("cuda", dtype).to(memory_format=torch.channels_last_3d)
    x, weight = x[:, :, :, 1:45], (torch.randn(128, 256, 1, 1, 1, generator=random) / 16).to("cuda", dtype)
    bias = torch.randn(128, generator=random).to("cuda", dtype) if with_bias else None
    want = F.conv3d(x.double(), weight.double(), None if bias is None else bias.double())
    found = convolution_in(3, Kernels())(x, weight, bias, [1, 1, 1], [0, 0, 0], [1, 1, 1], 1)
    own = F.conv3d(x, weight, bias)
    errors = [float((y.double() - want).norm() / want.norm()) for y in (found, own)]
    assert errors[0] <= 1.02 * errors[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("inner", "outer"), [(256, 256), (96, 40), (3, 5)])
def test_every_call_gives_the_same_bits(inner: int, outer: int, last: bool, dtype: torch.dtype) -> None:
    order = torch.channels_last if last else torch.contiguous_format
    random = torch.Generator().manual_seed(1)
    x, weight = (
        torch.randn(*s, generator=random).to("cuda", dtype).contiguous(memory_format=order)
        for s in ((1, inner, 96, 80), (inner, outer, 4, 4))
    )
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        back = [CONV_T[2](x, weight, None, [2, 2], [1, 1], [0, 0], 1, [1, 1]) for _ in range(6)]
    for y in back[1:]:
        assert torch.equal(y, back[0])
    want = F.conv_transpose2d(x.double(), weight.double(), None, 2, 1)
    assert float((back[0].double() - want).norm() / want.norm()) < {torch.float32: 2e-6}.get(dtype, 4e-3)
