"""Shapes of convolutions' results are those that PyTorch gives."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from tvae.pipeline.memory.convolved_shapes import CONVOLUTIONS

PLAIN: list[tuple[Any, ...]] = [(), (None, 2), (None, 2, 1), (None, 1, 3, 2), (None, 3, 1, 1, 2)]
TRANSPOSED: list[tuple[Any, ...]] = [(), (None, 2), (None, 2, 1, 1), (None, 3, 1, 2, 2), (None, 2, 0, 0, 1, 2)]


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("options", PLAIN, ids=str)
def test_plain(dims: int, options: tuple[Any, ...]) -> None:
    x, groups = torch.zeros(2, 4, *(9, 12, 10)[:dims]), options[4] if len(options) > 4 else 1
    func, weight = getattr(torch, f"conv{dims}d"), torch.zeros(6, 4 // groups, *(3, 2, 4)[:dims])
    assert CONVOLUTIONS[func](x, weight, *options) == func(x, weight, *options).shape


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("options", TRANSPOSED, ids=str)
def test_transposed(dims: int, options: tuple[Any, ...]) -> None:
    x, weight = torch.zeros(2, 4, *(5, 4, 6)[:dims]), torch.zeros(4, 3, *(3, 2, 4)[:dims])
    func = getattr(torch, f"conv_transpose{dims}d")
    assert CONVOLUTIONS[func](x, weight, *options) == func(x, weight, *options).shape


def test_each_dimension_may_have_its_own() -> None:
    x, weight = torch.zeros(1, 2, 11, 8), torch.zeros(3, 2, 3, 1)
    options: dict[str, Any] = {"stride": (2, 1), "padding": [1, 0], "dilation": (2, 1)}
    assert CONVOLUTIONS[torch.conv2d](x, weight, **options) == torch.conv2d(x, weight, **options).shape


@pytest.mark.slow
def test_asking_imports_no_sympy() -> None:
    code = (
        "import sys, torch\nfrom tvae.pipeline.memory.convolved_shapes import CONVOLUTIONS\n"
        "CONVOLUTIONS[torch.conv2d](torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 3, 3))\nprint('sympy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
