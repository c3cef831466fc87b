"""A GPU's context, made while PyTorch is imported, and what can be asked of the GPU before.

The driver takes a third of a second to start a GPU for a process. PyTorch asks for that when it is first used, after an
import of a second or two, for which the driver need not wait: the context that PyTorch takes is the device's primary
one (https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__PRIMARY__CTX.html), whoever has asked for it first.
Where there is a GPU, Triton's name for itself is found out in that time, too, unless it is known.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import threading
from pathlib import Path

from tvae.kernels.triton_reading import read_ahead

__all__ = ["begin_cuda", "capability_of"]

_MAJOR, _MINOR = 75, 76
"""The driver's CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and MINOR."""
_DRIVER, _OF_PYTORCH = (
    ("nvcuda.dll", "torch_cuda.dll") if sys.platform == "win32" else ("libcuda.so.1", "libtorch_cuda.so")
)


def begin_cuda(name: str | None, *, driver_alone: bool = False) -> threading.Thread | None:
    """Start the device of this name, None: the first one, in a thread, where PyTorch will use it and is not there yet.

    driver_alone: which device that will be is not known yet. The driver looks at all that there are, and takes memory
    of none. Python waits for the thread at its end. Where the driver has no such device the thread does nothing:
    PyTorch says what is wrong.
    """
    number = _number(name)
    if number is None or "torch" in sys.modules or not _for_cuda():
        return None
    _load_lazily()
    thread = threading.Thread(target=_start, args=(None if driver_alone else number,), name="tvae-cuda")
    thread.start()
    return thread


def capability_of(name: str | None) -> tuple[int, int] | None:
    """Of the device of this name, None: the first one, without PyTorch and without memory of the device. None where
    PyTorch cannot use it or the driver does not have it."""
    number = _number(name)
    if number is None or not _for_cuda():
        return None
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return None
    _load_lazily()
    device, found = ctypes.c_int(), (ctypes.c_int(), ctypes.c_int())
    if driver.cuInit(0) != 0 or driver.cuDeviceGet(ctypes.byref(device), number) != 0:
        return None
    for value, attribute in zip(found, (_MAJOR, _MINOR), strict=True):
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) != 0:
            return None
    return found[0].value, found[1].value


def _load_lazily() -> None:
    """As PyTorch has it before it starts a GPU."""
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")


def _number(name: str | None) -> int | None:
    """Of a GPU by its name, None: the first one. None for other names."""
    kind, _, number = (name or "cuda").partition(":")
    return int(number or "0") if kind == "cuda" and (number or "0").isdecimal() else None


def _for_cuda() -> bool:
    """Is PyTorch here built for CUDA?"""
    found = importlib.util.find_spec("torch")
    return found is not None and any(
        (Path(p) / "lib" / _OF_PYTORCH).exists() for p in found.submodule_search_locations or []
    )


def _start(number: int | None) -> None:
    """The driver, and the device of this number."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and number is not None and driver.cuDeviceGet(ctypes.byref(device), number) == 0:
        threading.Thread(target=read_ahead, name="tvae-read", daemon=True).start()
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
