"""The exporter's cache of shapes is off while a model is captured, and as it was afterwards, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from tvae.pipeline.engine.capture import capture
from tvae.pipeline.errors import UnsupportedOp

settings = pytest.importorskip("torch._dynamo.config")


@pytest.fixture(params=[True, False])
def before(request: pytest.FixtureRequest) -> Iterator[bool]:
    """The setting as somebody else has it. (monkeypatch would hide it for good: it is no plain attribute.)"""
    default = settings.fake_tensor_cache_enabled
    settings.fake_tensor_cache_enabled = request.param
    yield request.param
    settings.fake_tensor_cache_enabled = default


@pytest.mark.parametrize("fails", [True, False])
def test_off_within_a_capture_alone(before: bool, fails: bool) -> None:
    module, seen = nn.Conv2d(3, 3, 3), list[bool]()

    def fn(x: Tensor) -> list[Tensor]:
        seen.append(settings.fake_tensor_cache_enabled)
        if fails and bool(x.sum() > 0):
            raise AssertionError("a graph cannot branch on values")
        return [module(x)]

    if fails:
        with pytest.raises(UnsupportedOp):
            capture(module, fn, [torch.zeros(1, 3, 8, 8)])
    else:
        capture(module, fn, [torch.zeros(1, 3, 8, 8)])
    assert seen
    assert not any(seen)
    assert settings.fake_tensor_cache_enabled == before
