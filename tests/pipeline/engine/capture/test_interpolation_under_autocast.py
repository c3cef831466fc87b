"""In which type ``F.interpolate`` computes under autocast: as the dispatcher says, of tensors without memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from tvae.pipeline.engine.capture.autocast import interpolation_dtype
from tvae.pipeline.engine.capture.trace_mode import TraceMode

MODES: list[tuple[int, dict[str, Any]]] = [
    *((n, {"mode": mode}) for n in (1, 2, 3) for mode in ("nearest", "nearest-exact", "area")),
    *((1, {"mode": "linear"}), (2, {"mode": "bilinear"}), (2, {"mode": "bicubic"}), (3, {"mode": "trilinear"})),
    *((2, {"mode": "bilinear", "antialias": True}), (2, {"mode": "bicubic", "antialias": True})),
]


@pytest.fixture(params=[True, False], ids=["autocast", "none"])
def autocast(request: pytest.FixtureRequest) -> Iterator[bool]:
    """On a GPU, which need not be there."""
    torch.set_autocast_enabled("cuda", request.param)
    yield request.param
    torch.set_autocast_enabled("cuda", False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("dims", "how"), MODES, ids=str)
def test_the_type_is_the_dispatchers(dims: int, how: dict[str, Any], dtype: torch.dtype, autocast: bool) -> None:
    with FakeTensorMode():
        for device in ("cuda", "cpu"):
            x = torch.empty(1, 4, *[8] * dims, device=device, dtype=dtype)
            want = F.interpolate(x, scale_factor=2.0, **how).dtype
            assert interpolation_dtype(x, **how) == want
            assert autocast or want == dtype
            with TraceMode(torch.nn.Module(), lambda: None):
                by_place = [how["mode"], None, None, how.get("antialias", False)]
                assert F.interpolate(x, None, 2.0, *by_place).dtype == want
                assert F.interpolate(input=x, scale_factor=2.0, **how).dtype == want
