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
from tvae.kernels.cuda.ring import Card
from tvae.kernels.registry import Unsupported

__all__ = ["Launch", "StructLaunch", "card", "load", "no_card", "resident"]

_log = logging.getLogger("tvae")
_lock = threading.Lock()
_building: dict[tuple[Any, ...], threading.Lock] = {}
"""Different programs are built side by side."""
_here = threading.local()
_streams: dict[int, Any] = {}


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
    from cuda.core import Device

    of = Device(device).properties
    capability = torch.cuda.get_device_capability(device)
    shared = of.max_shared_memory_per_block_optin, of.max_shared_memory_per_multiprocessor
    return Card(capability, of.multiprocessor_count, *shared)


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
    from cuda.bindings import driver
    from cuda.core import ObjectCode

    code = ObjectCode.from_cubin(made)
    kernels = {name: code.get_kernel(name) for name in names}
    most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    for kernel in kernels.values():
        (error,) = driver.cuKernelSetAttribute(most, card(device).shared_block, kernel.handle, driver.CUdevice(device))
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(error.name)
    return kernels


def resident(kernel: Any, threads: int, shared: int, device: int) -> int:
    """Blocks of a kernel that a multiprocessor runs at once, at least 1."""
    with torch.cuda.device(device):
        _attach(device)
        return max(1, int(kernel.occupancy.max_active_blocks_per_multiprocessor(threads, shared)))


class Launch:
    """A kernel with its grid. Calls cost a few microseconds; they can be captured in a CUDA graph."""

    def __init__(self, kernel: Any, blocks: int, threads: int, shared: int, device: int) -> None:
        from cuda.core import LaunchConfig, launch

        self._kernel, self._device, self._launch = kernel, device, launch
        self._config = LaunchConfig(grid=blocks, block=threads, shmem_size=shared)

    def __call__(self, *arguments: int) -> None:
        """Run on the device's current stream. Every argument is a pointer or a 64-bit integer."""
        if current.device() == self._device:
            self._run(arguments)
        else:
            with torch.cuda.device(self._device):
                self._run(arguments)

    def _run(self, arguments: tuple[int, ...]) -> None:
        _attach(self._device)
        self._launch(_stream(self._device), self._config, self._kernel, *arguments)


class StructLaunch:
    """A kernel whose arguments are structures, with its grid: what a launch of it needs is looked up once."""

    def __init__(self, kernel: Any, blocks: int, threads: int, shared: int, device: int, structures: int) -> None:
        from cuda.bindings import driver

        self._kernel, self._device = kernel, device
        self._function, self._success = driver.CUfunction(int(kernel.handle)), driver.CUresult.CUDA_SUCCESS
        self._launch, self._grid, self._shared = driver.cuLaunchKernel, (blocks, 1, 1, threads, 1, 1), shared
        self._addresses = ctypes.c_void_p * structures

    def __call__(self, *structures: int) -> None:
        """Run on the device's current stream. structures: their addresses."""
        if current.device() == self._device:
            self._run(structures)
        else:
            with torch.cuda.device(self._device):
                self._run(structures)

    def _run(self, structures: tuple[int, ...]) -> None:
        _attach(self._device)
        addresses, stream = self._addresses(*structures), current.stream(self._device)
        (error,) = self._launch(self._function, *self._grid, self._shared, stream, ctypes.addressof(addresses), 0)
        if error != self._success:
            raise RuntimeError(f"a kernel was not launched: {error.name}")


def _attach(device: int) -> None:
    """PyTorch's context of a device is this thread's; PyTorch itself may not have called CUDA in this thread yet."""
    if getattr(_here, "device", None) != device:
        from cuda.core import Device

        Device(device).set_current()
        _here.device = device


def _stream(device: int) -> Any:
    """PyTorch's current stream as cuda.core wants it."""
    raw = torch.cuda.current_stream(device).cuda_stream
    found = _streams.get(raw)
    if found is None:
        from cuda.core import LEGACY_DEFAULT_STREAM, Stream

        found = _streams[raw] = Stream.from_handle(raw) if raw else LEGACY_DEFAULT_STREAM
    return found
