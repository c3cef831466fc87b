"""A kernel of a program on a device: loaded once, then launched on PyTorch's current stream."""

from __future__ import annotations

import ctypes
import logging
import threading
from functools import cache
from typing import Any

import torch

from tvae.kernels import current
from tvae.kernels.cuda import program
from tvae.kernels.cuda.answers import value_of
from tvae.kernels.cuda.ring import Card
from tvae.kernels.registry import Unsupported

__all__ = ["Launch", "StructLaunch", "card", "load", "no_card", "resident"]

_log = logging.getLogger("tvae")
_lock = threading.Lock()
_building: dict[tuple[Any, ...], threading.Lock] = {}
"""Different programs are built side by side."""
_here = threading.local()


def no_card() -> str | None:
    """Why there is no card on this machine that this level's kernels run on, or None."""
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return "no NVIDIA GPU"
    if torch.cuda.get_device_capability()[0] < 8:
        return "the GPU is older than compute capability 8.0"
    return None


@cache
def card(device: int) -> Card:
    """What the ring must know of a CUDA device."""
    from cuda.bindings import driver

    capability = torch.cuda.get_device_capability(device)  # PyTorch starts the driver
    kinds = driver.CUdevice_attribute
    wanted = (
        kinds.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        kinds.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        kinds.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
    )
    return Card(capability, *(value_of(driver.cuDeviceGetAttribute(kind, driver.CUdevice(device))) for kind in wanted))


def load(kernel: str, name: str, macros: tuple[tuple[str, int], ...], device: int) -> Any:
    """A kernel of a program, allowed all the shared memory that a block can have. Unsupported where it cannot be built
    or loaded."""
    key = name, macros, device
    with _lock:
        building = _building.setdefault(key, threading.Lock())
    with building:  # who comes second takes what the first has built
        kernels = _program(*key)
    if isinstance(kernels, str):
        raise Unsupported(kernels)
    return kernels[kernel]


@cache
def _program(name: str, macros: tuple[tuple[str, int], ...], device: int) -> dict[str, Any] | str:
    """Kernel by name, or why there is none: a build that failed is not tried again."""
    try:
        made = program.compiled(name, card(device).capability, macros)
        with torch.cuda.device(device):
            _attach(device)
            return _loaded(made, program.PROGRAMS[name].kernels, device)
    except Exception as failure:  # whatever a compiler or a driver says, the level below can do the work
        _log.debug("%s is not built", name, exc_info=True)
        return f"the CUDA program could not be built: {failure}"


def _loaded(made: bytes, names: tuple[str, ...], device: int) -> dict[str, Any]:
    """Kernel by name. They stay until the process ends."""
    from cuda.bindings import driver

    library = value_of(driver.cuLibraryLoadData(made, [], [], 0, [], [], 0))
    kernels = {name: value_of(driver.cuLibraryGetKernel(library, name.encode())) for name in names}
    most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    for kernel in kernels.values():
        value_of(driver.cuKernelSetAttribute(most, card(device).shared_block, kernel, driver.CUdevice(device)))
    return kernels


def resident(kernel: Any, threads: int, shared: int, device: int) -> int:
    """Blocks of a kernel that a multiprocessor runs at once, at least 1."""
    from cuda.bindings import driver

    with torch.cuda.device(device):
        _attach(device)
        function = driver.CUfunction(int(kernel))
        return max(1, value_of(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared)))


class StructLaunch:
    """A kernel whose arguments are structures, with its grid: what a launch of it needs is looked up once. Calls cost a
    few microseconds; they can be captured in a CUDA graph."""

    def __init__(self, kernel: Any, blocks: int, threads: int, shared: int, device: int) -> None:
        from cuda.bindings import driver

        self._device = device
        self._function, self._success = driver.CUfunction(int(kernel)), driver.CUresult.CUDA_SUCCESS
        self._launch, self._grid, self._shared = driver.cuLaunchKernel, (blocks, 1, 1, threads, 1, 1), shared

    def __call__(self, *structures: int) -> None:
        """Run on the device's current stream. structures: their addresses."""
        if current.device() == self._device:
            self._run(structures)
        else:
            with torch.cuda.device(self._device):
                self._run(structures)

    def _run(self, structures: tuple[int, ...]) -> None:
        _attach(self._device)
        addresses, stream = (ctypes.c_void_p * len(structures))(*structures), current.stream(self._device)
        (error,) = self._launch(self._function, *self._grid, self._shared, stream, ctypes.addressof(addresses), 0)
        if error != self._success:
            raise RuntimeError(f"a kernel was not launched: {error.name}")


class Launch(StructLaunch):
    """A kernel whose arguments are pointers and 64-bit integers, with its grid."""

    def __call__(self, *arguments: int) -> None:
        """Run on the device's current stream."""
        words = (ctypes.c_int64 * len(arguments))(*arguments)
        first = ctypes.addressof(words)
        super().__call__(*range(first, first + ctypes.sizeof(words), ctypes.sizeof(ctypes.c_int64)))


def _attach(device: int) -> None:
    """PyTorch's context of a device is this thread's; PyTorch itself may not have called CUDA in this thread yet."""
    if getattr(_here, "device", None) != device:
        from cuda.bindings import driver

        value_of(driver.cuCtxSetCurrent(_context(device)))
        _here.device = device


@cache
def _context(device: int) -> Any:
    """The device's primary context, which is PyTorch's."""
    from cuda.bindings import driver

    return value_of(driver.cuDevicePrimaryCtxRetain(driver.CUdevice(device)))
