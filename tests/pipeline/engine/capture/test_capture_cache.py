"""The exporter's cache of shapes is passed by while a model is captured, in that thread, and its setting left alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.errors import UnsupportedOp

settings = pytest.importorskip("torch._dynamo.config")


@pytest.fixture(params=[True, False])
def before(request: pytest.FixtureRequest) -> Iterator[bool]:
    """The setting as somebody else has it. (monkeypatch would hide it for good: it is no plain attribute.)"""
    default = settings.fake_tensor_cache_enabled
    settings.fake_tensor_cache_enabled = request.param
    yield request.param
    settings.fake_tensor_cache_enabled = default


def asked() -> int:
    """How often the cache was."""
    found = FakeTensorMode.cache_info()
    return int(found.hits + found.misses + sum(found.bypasses.values()))


@pytest.mark.parametrize("fails", [True, False])
def test_never_asked_within_a_capture(before: bool, fails: bool) -> None:
    module, seen = nn.Conv2d(3, 3, 3), list[bool]()

    def fn(x: Tensor) -> list[Tensor]:
        seen.append(settings.fake_tensor_cache_enabled)
        if fails and bool(x.sum() > 0):
            raise AssertionError("a graph cannot branch on values")
        return [module(x)]

    count = asked()
    if fails:
        with pytest.raises(UnsupportedOp):
            capture(module, fn, [torch.zeros(1, 3, 8, 8)])
    else:
        capture(module, fn, [torch.zeros(1, 3, 8, 8)])
    assert asked() == count
    assert seen
    assert set(seen) == {before}


def test_other_threads_ask_it() -> None:
    counts = list[int]()

    def other() -> None:
        counts.append(asked())
        with FakeTensorMode():
            torch.zeros(3, 5).sum(0).exp()
        counts.append(asked())

    def fn(x: Tensor) -> list[Tensor]:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return [x * 2]

    capture(nn.Conv2d(3, 3, 3), fn, [torch.zeros(1, 3, 8, 8)])
    assert counts[1] > counts[0]
