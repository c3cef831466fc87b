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
    """Stands in for a kernel whose arguments have these types."""

    def __init__(self, log: list[tuple[str, str]], *types: str) -> None:
        self.src = SimpleNamespace(signature=dict(enumerate(types)))
        self._log, self._name = log, types[0]

    def warmup(self, *_args: Any, **_options: Any) -> Any:
        return self

    @property
    def run(self) -> None:
        self._log.append((self._name, "begun"))
        time.sleep(0.1)
        self._log.append((self._name, "done"))


def test_one_compiles_the_launcher_of_some_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda _index: nullcontext())
    log: list[tuple[str, str]] = []
    kernels = [Kernel(log, "*bf16", "i32"), Kernel(log, "*bf16", "i32"), Kernel(log, "*fp32", "i32")]
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(launch._build, kernel, 0, (), {}) for kernel in kernels]:
            done.result()
    alike = [what for name, what in log if name == "*bf16"]
    assert alike == ["begun", "done", "begun", "done"]
    assert log.index(("*fp32", "begun")) < len(log) - 2  # beside those


def test_one_reads_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, most = [0], [0]

    def read() -> None:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        time.sleep(0.05)
        at_once[0] -= 1

    monkeypatch.setattr(launch.triton.runtime.cache, "triton_key", read)
    threads = [threading.Thread(target=launch.read_triton) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    monkeypatch.delattr(launch.triton.runtime.cache, "triton_key")
    launch.read_triton()  # a release that has none
