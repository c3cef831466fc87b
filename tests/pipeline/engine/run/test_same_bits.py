"""Rows in one layout, and statistics in one order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tvae.pipeline.engine.run.same_bits import laid_out_alike


def rows_in(layout: str) -> Tensor:
    """Rows 3 to 6 of a picture, as buffers and other places have them."""
    x = torch.arange(2 * 3 * 9 * 5, dtype=torch.float32).view(2, 3, 9, 5)
    if layout == "last":
        x = x.contiguous(memory_format=torch.channels_last)
    if layout == "apart":
        return x[:, :, 3:6].clone()
    return torch.nn.functional.pad(x, (2, 2))[:, :, 3:6, 2:7] if layout == "wide" else x[:, :, 3:6]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("layout", ["first", "last", "apart", "wide"])
def test_layouts(layout: str, last: bool) -> None:
    found, own = laid_out_alike(rows_in(layout), channels_last=last), rows_in("apart")
    own = own.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    assert torch.equal(found, own)
    assert found.stride() == own.stride()
    assert found.data_ptr() % 64 == 0


def test_strides_of_dimensions_of_one_element() -> None:
    """Which libraries look at, too, though they mean nothing."""
    x = torch.zeros(1, 4, 6, 5)[:, :1]
    assert x.is_contiguous()
    found = laid_out_alike(x, channels_last=False)
    assert found.stride() == torch.empty(x.shape).stride() != x.stride()
    assert found.data_ptr() == x.data_ptr()


def test_rows_that_begin_elsewhere_are_copied() -> None:
    x = torch.arange(36.0).view(1, 1, 12, 3)[:, :, 1:5]
    assert x.is_contiguous()
    found = laid_out_alike(x, channels_last=False)
    assert torch.equal(found, x)
    assert found.data_ptr() != x.data_ptr()
    assert found.data_ptr() % 64 == 0
