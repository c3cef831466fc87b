"""Convolutions by PyTorch with a pass of Triton's behind them: what they refuse, and when they take statistics."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)
import interpreted  # noqa: F401  (before Triton)
from kernel_inputs import channels_last

from tvae.kernels.cases import small_cases
from tvae.kernels.registry import Unsupported
from tvae.kernels.triton import IMPLEMENTATIONS

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("operation", ["conv_add", "enlarge_conv"])
def test_other_types_are_left_to_the_level_below(operation: str) -> None:
    x = channels_last(torch.ones(1, 4, 6, 6)).double().to(DEVICE)
    sides = {"conv_add": (3, None, None), "enlarge_conv": (4, None)}[operation]
    weight = torch.ones(4, 4, sides[0], sides[0], device=DEVICE).double()
    for stats in (True, False):
        with pytest.raises(Unsupported, match="float64"):
            IMPLEMENTATIONS[operation](x, weight, *sides[1:], (1, 1, 1, 1), None, stats)


@pytest.mark.parametrize("operation", ["conv_add", "enlarge_conv"])
def test_statistics_are_made_where_they_are_wanted(operation: str) -> None:
    for case in small_cases(operation, torch.float32, DEVICE):
        assert (IMPLEMENTATIONS[operation](*case.fresh())[1] is not None) == case.arguments[-1]


@pytest.mark.parametrize("operation", ["down_conv", "enlarge_conv"])
def test_results_with_channels_outside_are_not_convolved_twice(operation: str) -> None:
    """As in exact float32 on a GPU."""
    calls = []
    for case in small_cases(operation, torch.float32, DEVICE):
        x, *others, stats = case.arguments
        plain = [t.contiguous() if isinstance(t, torch.Tensor) else t for t in (x, *others[:-1])]
        y, parts = IMPLEMENTATIONS[operation](*plain, None, stats)
        calls.append(stats)
        assert (parts is not None) == stats
        if parts is not None:
            count, mean, _ = parts.unbind(2)
            found = (count * mean).sum(1) / count.sum(1)
            assert float((found - y.double().mean((2, 3))).abs().max()) < 1e-6
    assert any(calls)
