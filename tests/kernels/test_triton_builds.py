"""Builds beside one another: what all of them want is done by one of them."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from tvae.kernels.triton import launch


class Kernel:
    """Stands in for a kernel whose arguments have these types. beside: whom to meet while the launcher is made."""

    def __init__(self, log: list[str], beside: threading.Barrier | None, *types: str) -> None:
        self.src = SimpleNamespace(signature=dict(enumerate(types)))
        self._log, self._beside = log, beside

    def warmup(self, *_args: Any, **_options: Any) -> Any:
        return self

    @property
    def run(self) -> None:
        self._log.append("begun")
        if self._beside is not None:
            self._beside.wait(20)
        time.sleep(0.05)
        self._log.append("done")


def built(*kernels: Any) -> None:
    with ThreadPoolExecutor(len(kernels)) as pool:
        for done in [pool.submit(launch._build, kernel, 0, (), {}) for kernel in kernels]:
            done.result()


def test_launchers_of_the_same_types_come_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is on disk when the second is wanted; those of other types are made beside them."""
    monkeypatch.setattr(torch.cuda, "device", lambda _index: nullcontext())
    log: list[str] = []
    built(*(Kernel(log, None, "*bf16", "i32") for _ in range(3)))
    assert log == 3 * ["begun", "done"]
    barrier = threading.Barrier(2)
    built(Kernel(log, barrier, "*fp16", "i32"), Kernel(log, barrier, "*fp32", "i32"))
