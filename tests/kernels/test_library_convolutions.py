"""Maps of exact float32 go to a GPU's convolutions with their channels outside, others as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tvae.kernels import library_convolutions
from tvae.kernels.library_convolutions import conv3d, made_by


class OnGpu(Tensor):
    """A tensor that says so."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("on_gpu", [True, False])
def test_the_layout_that_a_convolution_gets(dtype: torch.dtype, on_gpu: bool) -> None:
    x = torch.randn(1, 4, 3, 6, 5, dtype=dtype).contiguous(memory_format=torch.channels_last_3d)
    weight, got = torch.randn(2, 4, 1, 1, 1, dtype=dtype), list[Tensor]()

    def maker(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        got.append(args[0])
        return torch.empty(0)

    with made_by(maker):
        for given in (x, x.contiguous()):
            conv3d(given.as_subclass(OnGpu) if on_gpu else given, weight)
    turned = on_gpu and dtype in (torch.float32, torch.float64)
    assert [t.is_contiguous() for t in got] == [turned, True]
    assert all(torch.equal(t, x) for t in got)
    assert got[1].data_ptr() != x.data_ptr()


def test_results_are_pytorchs() -> None:
    x, weight = torch.randn(2, 4, 6, 5), torch.randn(3, 4, 3, 3)
    assert torch.equal(library_convolutions.conv2d(x, weight, padding=1), torch.conv2d(x, weight, padding=1))
