"""Results whose shapes are plain to see lie in memory as PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tvae.pipeline.engine.capture.shortcuts import plain_shape

aten = torch.ops.aten

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(1, 3).contiguous().transpose(1, 3),
    "a slice": lambda x: torch.cat([x, x], dim=3)[..., 1 : 1 + x.shape[3]],
    "expanded": lambda x: x[:, :1].expand(-1, x.shape[1], -1, -1),
}
CALLS: list[tuple[Any, Callable[[Tensor], tuple[Any, ...]], dict[str, Any]]] = [
    (aten.silu.default, lambda x: (x,), {}),
    (aten.clamp_min.default, lambda x: (x, 1e-12), {}),
    (aten.clamp.default, lambda x: (x, -1.0, 1.0), {}),
    (aten._to_copy.default, lambda x: (x,), {"dtype": torch.float64}),
    (aten._to_copy.default, lambda x: (x,), {"dtype": torch.int32}),
    (aten.clone.default, lambda x: (x,), {}),
    (aten.clone.default, lambda x: (x,), {"memory_format": torch.preserve_format}),
    (aten.clone.default, lambda x: (x,), {"memory_format": torch.contiguous_format}),
    (aten.mul.Tensor, lambda x: (x, 3), {}),
    (aten.add.Tensor, lambda x: (x, x), {"alpha": 2}),
    (aten.sub.Tensor, lambda x: (x, x[:, :1]), {}),
    (aten.mul.Tensor, lambda x: (x, torch.rand(x.shape[1], 1, 1)), {}),
    (aten.div.Tensor, lambda x: (x, x[:, :1].expand_as(x)), {}),
    (aten.add.Tensor, lambda x: (torch.rand(1, x.shape[1], 1, 1), x), {}),
    (aten.mul.Tensor, lambda x: (torch.rand(()), x), {}),
    (aten.constant_pad_nd.default, lambda x: (x.contiguous(), [1, 2, 0, 0, -1, 3]), {}),
    (aten.constant_pad_nd.default, lambda x: (x.contiguous(), [0, 1], 2.0), {}),
    (aten.convolution.default, lambda x: _conv(x, 3, 1, 1, 1), {}),
    (aten.convolution.default, lambda x: _conv(x, 2, 2, 0, 1), {}),
    (aten.convolution.default, lambda x: _conv(x, 3, 2, 2, 2), {}),
    (aten.view.default, lambda x: (x, [2, 2, 2, 6, 5]), {}),
    (aten.view.default, lambda x: (x, [2, 4, 2, 3, 5]), {}),
    (aten.view.default, lambda x: (x.contiguous(), [2, 4, 30]), {}),
    (aten.view.default, lambda x: (x.contiguous(), [8, 6, 5]), {}),
    (aten.view.default, lambda x: (x.contiguous(), [240]), {}),
    (aten.view.default, lambda x: (torch.rand(6, 5, 8).transpose(0, 2), [8, 5, 2, 3]), {}),
    (aten.mean.dim, lambda x: (x.contiguous(), [1]), {}),
    (aten.mean.dim, lambda x: (x.contiguous(), [-1, 2], True), {"dtype": torch.float64}),
    (aten.pixel_shuffle.default, lambda x: (x.contiguous(), 2), {}),
    (aten.pixel_shuffle.default, lambda x: (x[0].contiguous(), 1), {}),
    (aten.pixel_unshuffle.default, lambda x: (torch.rand(2, 3, 6, 4), 2), {}),
    (aten.pixel_unshuffle.default, lambda x: (torch.rand(3, 6, 9), 3), {}),
    (aten.pixel_unshuffle.default, lambda x: (torch.rand(2, 6, 4, 5).permute(0, 3, 1, 2), 2), {}),
    (aten.cat.default, lambda x: ([x.contiguous(), x[:1].contiguous()],), {}),
    (aten.cat.default, lambda x: ([x.contiguous(), x[:, :, :2].contiguous(), x.contiguous()], -2), {}),
]
_OPTIONS = (None, [1, 1], [0, 0], [1, 1])
REFUSED: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.add.Tensor, (torch.rand(2, 1, 4), torch.rand(1, 3, 4)), {}),  # neither has the result's shape
    (aten.add.Tensor, (torch.rand(4), torch.rand(4).double()), {}),
    (aten.mul.Tensor, (torch.arange(4), 0.5), {}),  # a result of another type
    (aten.div.Tensor, (torch.arange(4), torch.arange(4)), {}),
    (aten.mul.Tensor, (torch.rand(4), 1j), {}),
    (aten.sub.Tensor, (1, torch.rand(4)), {}),
    (aten.mul.Tensor, (0.5, torch.rand(4)), {}),  # as a decomposition of PyTorch's calls it
    (aten.clamp_min.default, (torch.arange(4), 0.5), {}),
    (aten.clamp.default, (torch.arange(4), 0.5), {}),
    (aten.clone.default, (torch.rand(1, 2, 3, 4),), {"memory_format": torch.channels_last}),
    (aten._to_copy.default, (torch.rand(4),), {"device": torch.device("meta")}),
    (aten.linalg_vector_norm.default, (torch.rand(4, 4),), {}),
    (aten.linalg_vector_norm.default, (torch.rand(4, 4), 2, [1]), {}),
    (aten.cat.default, ([torch.rand(2, 4), torch.rand(2, 4).T.contiguous().T],), {}),  # laid out otherwise
    (aten.cat.default, ([torch.rand(2, 4), torch.rand(2, 4).double()],), {}),
    (aten.cat.default, ([torch.rand(2, 4), torch.rand(0)],), {}),  # an old custom: nothing, of any shape
    (aten.constant_pad_nd.default, (torch.rand(4, 4).T, [1, 1]), {}),
    (aten.relu.default, (torch.rand(4),), {}),
    (aten.view.default, (torch.rand(4, 6), [3, 8]), {}),
    (aten.view.default, (torch.rand(4, 6), [4, 1, 6]), {}),
    (aten.view.default, (torch.rand(4, 6), [4, 5]), {}),  # PyTorch tells
    (aten.view.default, (torch.rand(4, 6), [4, -1]), {}),
    (aten.view.default, (torch.rand(4, 6).T, [24]), {}),
    (aten.convolution.default, (torch.rand(1, 4, 6, 5), torch.rand(4, 2, 3, 3), *_OPTIONS, True, [0, 0], 1), {}),
    (
        aten.convolution.default,
        (torch.rand(1, 6, 5, 4).permute(0, 3, 1, 2), torch.rand(2, 4, 3, 3), *_OPTIONS, False, [0, 0], 1),
        {},
    ),
]


def _conv(x: Tensor, size: int, step: int, border: int, gap: int) -> tuple[Any, ...]:
    weight = torch.rand(3, x.shape[1], size, size)
    return x.contiguous(), weight, None, [step] * 2, [border] * 2, [gap] * 2, False, [0, 0], 1


def _looks(t: Tensor) -> tuple[object, ...]:
    return t.shape, t.stride(), t.dtype, t.device


def _fake(value: Any, mode: FakeTensorMode) -> Any:
    if isinstance(value, list):
        return [_fake(v, mode) for v in value]
    return mode.from_tensor(value) if isinstance(value, Tensor) else value


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("number", range(len(CALLS)), ids=lambda n: f"{CALLS[n][0]}{n}")
def test_a_result_lies_as_pytorchs(number: int, layout: str) -> None:
    func, given, kwargs = CALLS[number]
    args, mode = given(LAYOUTS[layout](torch.rand(2, 4, 6, 5))), FakeTensorMode()
    ours, theirs = plain_shape(func, tuple(_fake(a, mode) for a in args), kwargs), func(*args, **kwargs)
    assert _looks(ours) == _looks(theirs)


@pytest.mark.parametrize(("channels", "groups"), [(5, 1), (3, 1), (4, 2), (8, 1)])
def test_a_convolution_of_other_channels_is_left_to_pytorch(channels: int, groups: int) -> None:
    """It raises: a plan must not take what no call takes."""
    mode, weight = FakeTensorMode(), torch.rand(6, 4, 3, 3)
    given = (torch.rand(1, channels, 6, 5), weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups)
    assert plain_shape(aten.convolution.default, tuple(_fake(a, mode) for a in given), {}) is None
    unbatched = (torch.rand(4, 6, 5), *given[1:])
    assert plain_shape(aten.convolution.default, tuple(_fake(a, mode) for a in unbatched), {}) is None


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])  # PyTorch makes one of them of all others before
def test_group_norm(layout: str) -> None:
    x, func = LAYOUTS[layout](torch.rand(2, 4, 6, 5)), aten.native_group_norm.default
    ours = plain_shape(func, (FakeTensorMode().from_tensor(x), None, None, 2, 4, 30, 2, 1e-6), {})
    assert [*map(_looks, ours)] == [*map(_looks, func(x, None, None, 2, 4, 30, 2, 1e-6))]


@pytest.mark.parametrize("dims", [[1], [-1], [2, 3]], ids=str)
def test_norms_of_vectors(dims: list[int]) -> None:
    x, mode = torch.rand(2, 4, 6, 5, dtype=torch.bfloat16), FakeTensorMode()
    for kwargs in ({}, {"dtype": torch.float32}):
        func = aten.linalg_vector_norm.default
        ours, theirs = plain_shape(func, (mode.from_tensor(x), 2, dims, True), kwargs), func(x, 2, dims, True, **kwargs)
        assert (ours.shape, ours.dtype, ours.is_contiguous()) == (theirs.shape, theirs.dtype, theirs.is_contiguous())


@pytest.mark.parametrize("number", range(len(REFUSED)), ids=lambda n: f"{REFUSED[n][0]}{n}")
def test_what_is_not_plain_is_left_to_the_exporter(number: int) -> None:
    func, args, kwargs = REFUSED[number]
    mode = FakeTensorMode()
    assert plain_shape(func, tuple(_fake(a, mode) for a in args), kwargs) is None
