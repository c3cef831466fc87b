"""Every kernel of level 4 against float64, in the calls that its operation lists; a new one takes part by itself."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)
import interpreted  # noqa: F401  (before Triton)

from tvae.kernels.cases import small_cases
from tvae.kernels.check import deviation
from tvae.kernels.registry import Unsupported
from tvae.kernels.triton import IMPLEMENTATIONS

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LONG = {"finish_stats"}
"""Twenty seconds in the interpreter."""


@pytest.mark.parametrize(
    "operation", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in IMPLEMENTATIONS]
)
def test_small_calls(operation: str) -> None:
    taken, refused = 0, []
    for dtype in (torch.float32, torch.float16):
        for case in small_cases(operation, dtype, DEVICE):
            try:
                found = deviation(case, IMPLEMENTATIONS[operation])
            except Unsupported as reason:
                refused.append(str(reason))
                continue
            taken += 1
            assert found.passed, f"{case.label}: {found}"
    assert taken or any("needs an NVIDIA GPU" in reason for reason in refused)
