"""A GPU starts beside the import of PyTorch, and only where PyTorch will want it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tvae.pipeline.settings import early_cuda
from tvae.pipeline.settings.early_cuda import begin_cuda, capability_of


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """One that has two devices, numbers 7 and 8 to it; PyTorch is built for CUDA, and not imported yet."""
    log: list[Any] = []

    def device_of(found: Any, number: int) -> int:
        found._obj.value = 7 + number
        return 0 if number < 2 else 101

    def attribute(found: Any, which: int, device: Any) -> int:
        found._obj.value = {75: 9, 76: device.value - 7}[which]
        return int(made.broken)

    made = SimpleNamespace(
        log=log,
        read=threading.Event(),
        broken=0,
        cuInit=lambda flags: log.append(("init", flags)) or made.broken,
        cuDeviceGet=device_of,
        cuDeviceGetAttribute=attribute,
        cuDevicePrimaryCtxRetain=lambda _context, device: log.append(("retain", device.value)) or 0,
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda name: log.append(name) or made)
    monkeypatch.setattr(early_cuda, "_for_cuda", lambda: True)
    monkeypatch.setattr(early_cuda, "read_ahead", lambda: made.read.set())
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    return made


def begun(name: str | None) -> bool:
    thread = begin_cuda(name)
    if thread is not None:
        thread.join(20)
    return thread is not None


@pytest.mark.parametrize(("name", "device"), [(None, 7), ("cuda", 7), ("cuda:0", 7), ("cuda:1", 8)])
def test_the_device_that_is_meant(name: str | None, device: int, driver: SimpleNamespace) -> None:
    assert begun(name)
    assert driver.log == [early_cuda._DRIVER, ("init", 0), ("retain", device)]
    assert driver.read.wait(20), "Triton is read, too"


def test_the_driver_alone(driver: SimpleNamespace) -> None:
    thread = begin_cuda(None, driver_alone=True)
    assert thread is not None
    thread.join(20)
    assert driver.log == [early_cuda._DRIVER, ("init", 0)]
    assert not driver.read.is_set()


def test_kernels_are_loaded_as_pytorch_has_them_loaded(
    driver: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert begun(None)
    assert os.environ["CUDA_MODULE_LOADING"] == "EAGER", "as the user wants it"
    monkeypatch.delenv("CUDA_MODULE_LOADING")
    assert begun(None)
    assert os.environ["CUDA_MODULE_LOADING"] == "LAZY"


def test_one_that_the_driver_does_not_have(driver: SimpleNamespace) -> None:
    assert begun("cuda:2")
    driver.broken = 100
    assert begun("cuda:0")
    assert driver.log == 2 * [early_cuda._DRIVER, ("init", 0)]
    assert not driver.read.is_set()


@pytest.mark.parametrize("name", ["cpu", "mps", "meta", "cuda:x", "cuda:-1", "cuda:1:2"])
def test_other_devices_and_wrong_names(name: str, driver: SimpleNamespace) -> None:
    assert not begun(name)
    assert driver.log == []


def test_the_capability_of_a_device(driver: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_MODULE_LOADING")
    assert [capability_of(name) for name in (None, "cuda", "cuda:0", "cuda:1")] == [(9, 0), (9, 0), (9, 0), (9, 1)]
    assert driver.log == 4 * [early_cuda._DRIVER, ("init", 0)], "no device is taken"
    assert os.environ["CUDA_MODULE_LOADING"] == "LAZY"
    assert [capability_of(name) for name in ("cuda:2", "cpu", "cuda:x")] == [None] * 3
    driver.cuInit = lambda _flags: 0
    driver.broken = 100
    assert capability_of("cuda:0") is None
    driver.cuInit = lambda _flags: 100
    assert capability_of("cuda:0") is None


def test_no_capability_where_pytorch_cannot_use_it(driver: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_cuda, "_for_cuda", lambda: False)
    assert capability_of(None) is None
    assert driver.log == []


def test_without_a_driver(driver: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert begun(None)
    assert capability_of(None) is None


def test_where_pytorch_is_there_or_cannot_use_it(driver: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_cuda, "_for_cuda", lambda: False)
    assert not begun(None)
    monkeypatch.setattr(early_cuda, "_for_cuda", lambda: True)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert not begun(None)
    assert driver.log == []


def test_what_pytorch_is_built_for_is_known_without_its_import() -> None:
    program = (
        "import sys; from tvae.pipeline.settings.early_cuda import _for_cuda as f; print(f(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(torch.backends.cuda.is_built()), "False"]
