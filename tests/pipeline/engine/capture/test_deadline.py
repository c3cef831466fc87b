"""A capture that would go on and on ends with an error that says where, and leaves nothing behind."""

from __future__ import annotations

import math
import threading
import time

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tvae.pipeline.engine.capture import capture as capturing
from tvae.pipeline.engine.capture import deadline as deadlines
from tvae.pipeline.engine.capture.deadline import TookTooLong, deadline
from tvae.pipeline.errors import UnsupportedOp


class Same(nn.Conv2d):
    """Padding as TensorFlow computes it."""

    def forward(self, x: Tensor) -> Tensor:
        missing = [max((math.ceil(n / s) - 1) * s + 3 - n, 0) for n, s in zip(x.shape[-2:], self.stride, strict=True)]
        amounts = [side for n in missing[::-1] for side in (n // 2, n - n // 2)]
        return super().forward(F.pad(x, amounts))


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Same(3, 3, 3, stride=s) for s in (1, 1, 2) * 4])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


def test_a_capture_without_end_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capturing, "deadline", lambda: deadline(1.0))
    module = Deep().eval()
    begin = time.monotonic()
    with pytest.raises(UnsupportedOp, match="takes more than") as caught:
        capturing.capture(module, lambda x: [module(x)], [torch.zeros(1, 3, 64, 48)])
    assert time.monotonic() - begin < 20
    assert caught.value.module.startswith("blocks.")
    assert "\n" not in str(caught.value)
    plain = nn.Conv2d(3, 3, 3)  # and the exporter works as before
    monkeypatch.undo()
    assert capturing.capture(plain, lambda x: [plain(x)], [torch.zeros(1, 3, 8, 8)]).fixed is None


def test_it_strikes_in_the_thread_that_began_and_not_afterwards() -> None:
    def busy() -> None:
        while True:
            sum(range(1000))

    with pytest.raises(TookTooLong), deadline(0.1):
        busy()
    with deadline(0.05):
        pass
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        sum(range(1000))
    assert not [t for t in threading.enumerate() if "capture deadline" in t.name]


def test_without_clocks_of_threads_it_goes_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(deadlines.time, "pthread_getcpuclockid", raising=False)

    def waiting() -> None:
        while True:
            time.sleep(0.01)

    with pytest.raises(TookTooLong), deadline(0.1):
        waiting()
