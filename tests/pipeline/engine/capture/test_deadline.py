"""A capture that would go on and on ends with an error that says where, and leaves nothing behind."""

from __future__ import annotations

import math
import subprocess
import sys
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


@pytest.mark.long
def test_a_capture_without_end_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = nn.Conv2d(3, 3, 3)
    capturing.capture(plain, lambda x: [plain(x)], [torch.zeros(1, 3, 8, 8)])  # what the exporter does once a process
    monkeypatch.setattr(capturing, "deadline", lambda: deadline(2.0))
    module = Deep().eval()
    begin = time.monotonic()
    with pytest.raises(UnsupportedOp, match="takes more than") as caught:
        capturing.capture(module, lambda x: [module(x)], [torch.zeros(1, 3, 64, 48)])
    assert time.monotonic() - begin < 20
    assert caught.value.module.startswith("blocks.")
    assert "\n" not in str(caught.value)
    monkeypatch.undo()  # and the exporter works as before
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


TRACED = """
import sys
from tvae.pipeline.engine.capture.deadline import deadline

def traced(frame, event, arg):
    return traced

with deadline(60.0):
    pass
sys.settrace(traced)
(lambda: None)()
sys.settrace(None)
print("went on")
"""


@pytest.mark.long
def test_the_interpreter_is_left_as_it_was() -> None:
    """An exception that is taken back leaves CPython looking for one at every step; one that is traced never ends."""
    run = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout.split() == ["went", "on"], run.stderr


@pytest.mark.long
def test_what_comes_late_does_not_strike_afterwards() -> None:
    """Sent while the block ends: it has arrived, or never will, when the block is left."""
    for _ in range(30):
        try:
            with deadline(0.05):
                end = time.monotonic() + 0.05
                while time.monotonic() < end:
                    pass
        except TookTooLong:
            pass
        for _ in range(10000):
            pass


def test_one_that_somebody_caught_is_not_waited_for() -> None:
    with deadline(0.05):
        try:
            while True:
                pass
        except BaseException:  # as libraries do
            pass
