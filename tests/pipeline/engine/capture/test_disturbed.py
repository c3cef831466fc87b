"""Captures that another thread has disturbed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import fake_tensor

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.capture.disturbed import again_where_disturbed


class Enlarges(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def encode(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        return F.interpolate(h, size=(int(h.shape[2] * 1.5), int(h.shape[3] * 1.5)))

    decode = encode


@torch.no_grad()
def test_it_is_tried_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next best ways give up other things, and the last makes constants of sizes: its graph was kept on disk."""
    left, inside, export = [0] * 4, threading.local(), torch.export.export
    real = fake_tensor.in_kernel_invocation_manager

    def exported(*args: Any, **kwargs: Any) -> Any:
        inside.disturbed = bool(left) and left.pop() == 0
        return export(*args, **kwargs)

    @contextmanager
    def in_kernel_invocation_manager(mode: Any) -> Iterator[None]:
        if getattr(inside, "disturbed", False):
            inside.disturbed = False
            raise AssertionError("False, True")  # PyTorch's own words
        with real(mode):
            yield

    monkeypatch.setattr(torch.export, "export", exported)
    monkeypatch.setattr(fake_tensor, "in_kernel_invocation_manager", in_kernel_invocation_manager)
    model = Enlarges().eval()
    tiled = TiledVAE(model, "cpu", strip=3)
    for size in ((16, 12), (21, 20)):
        x = torch.randn(1, 3, *size)
        assert torch.allclose(tiled.encode(x), model.encode(x), atol=1e-5)
        assert tiled.plan((1, 3, *size), "encode").strips > 1
    assert not left


def test_it_is_not_tried_for_ever() -> None:
    times = 0

    def in_kernel_invocation_manager() -> None:
        raise AssertionError("False, True")

    @again_where_disturbed
    def export() -> None:
        nonlocal times
        times += 1
        in_kernel_invocation_manager()

    with pytest.raises(AssertionError):
        export()
    assert times == 5


@pytest.mark.parametrize("error", [AssertionError("False, True"), ValueError("a")])
def test_other_failures_are_the_models(error: Exception) -> None:
    times = 0

    @again_where_disturbed
    def export() -> None:
        nonlocal times
        times += 1
        raise error

    with pytest.raises(type(error)):
        export()
    assert times == 1
