"""A choice of sizes that no export takes leaves nothing of its callers behind, whatever comes of the others."""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tvae.pipeline.engine.capture import capture as module_of_capture
from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.errors import UnsupportedOp


@pytest.fixture
def nothing_collected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def captured(caches: Tensor, fails: int, in_cycle: bool, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Does a capture succeed whose first exports fail? The caller's frame has the caches of a clip. in_cycle: a failed
    export leaves a reference cycle that holds its frame, as that of PyTorch 2.11 does."""
    count, right = itertools.count(), module_of_capture._exported

    def exported(*args: Any) -> Any:
        if next(count) < fails:
            cycle: list[Any] = []
            if in_cycle:
                cycle += [cycle, sys._getframe()]
            raise ValueError("a size that is a constant")
        return right(*args)

    monkeypatch.setattr(module_of_capture, "_exported", exported)
    try:
        capture(nn.Identity(), lambda x: [x + 1], [torch.empty(1, 2, 8, 8)])
    except UnsupportedOp:
        return False
    return True


@pytest.mark.parametrize(
    ("fails", "in_cycle"), [(0, False), (1, False), (2, False), (1, True), (2, True), (100, False)]
)
def test_callers_are_let_go(
    fails: int, in_cycle: bool, nothing_collected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gigabytes stayed until Python's collector came by."""

    def caller() -> weakref.ref[Tensor]:
        caches = torch.randn(3)
        assert captured(caches, fails, in_cycle, monkeypatch) == (fails < 100)
        return weakref.ref(caches)

    assert caller()() is None
