"""The device a computation runs on, its preset, and the library settings a run borrows and gives back."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch

from tvae import presets
from tvae.kernels import OPERATIONS, Kernels, why_absent
from tvae.kernels.operations import operation_of
from tvae.pipeline.errors import UsageError
from tvae.pipeline.settings.known_levels import with_known_levels
from tvae.pipeline.settings.precision import exact_float32
from tvae.pipeline.settings.shared import cudnn_search
from tvae.presets import Preset

__all__ = ["backend_settings", "choose_preset", "kernels_of", "pick_device", "uses_channels_last"]

_log = logging.getLogger("tvae")


def pick_device(name: str | None) -> torch.device:
    """The device of this name; None: the first accelerator there is, else the CPU. Raises UsageError."""
    if name is None:
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        for kind in ("xpu", "mps"):
            backend = getattr(torch, kind, None)
            if backend is not None and backend.is_available():
                return torch.device(kind)
        return torch.device("cpu")
    device = _usable(name)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def _usable(name: str) -> torch.device:
    """The device of this name, if PyTorch can make a tensor on it."""
    try:
        device = torch.device(name)
        if device.type == "meta":
            why = "it holds no numbers"
        else:
            torch.empty(1, device=device)
            return device
    except (NotImplementedError, ImportError):  # PyTorch knows the name, and its messages are for its own authors
        why = "this PyTorch has nothing that computes there"
    except (RuntimeError, AssertionError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        if "INTERNAL ASSERT" in why:
            why = "this PyTorch has nothing that computes there"
    raise UsageError(f"device '{name}' cannot be used here: {why}")


def choose_preset(name: str, device: torch.device) -> Preset:
    """Return the preset of this name; ``auto`` goes by the device's kind and its free memory. Raises UsageError."""
    try:
        if name != "auto":
            return with_known_levels(presets.load(name))
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            chosen = presets.choose("cuda", torch.cuda.get_device_capability(device), free)
            return _fused(with_known_levels(chosen))
        return with_known_levels(presets.choose(device.type))
    except ValueError as error:
        raise UsageError(str(error)) from None


def _fused(preset: Preset) -> Preset:
    """Where the preset's kernels cannot run, the layout that PyTorch's own are faster in."""
    missing = why_absent(preset.levels["default"])
    if missing is None or preset.memory_layout == "contiguous":
        return preset
    _log.info("no kernels of level %s (%s): PyTorch's own, NCHW", preset.levels["default"], missing)
    return replace(preset, memory_layout="contiguous")


def uses_channels_last(preset: Preset, dtype: torch.dtype, device: torch.device) -> bool:
    """Do activations and weights lie so? In exact float32 cuDNN has no kernels for it on a GPU: it turns every operand
    and result round in memory that no plan knows, and copies weights. H200, channels last and contiguous: SDXL's shape,
    encode 1024x1024, 3.0 and 2.0 GiB (2.0 planned), 158 and 169 ms; Cosmos, decode 9 frames, 300 and 193 MiB, 64 and
    45 ms."""
    return preset.memory_layout == "channels_last" and not (device.type == "cuda" and dtype == torch.float32)


def kernels_of(preset: Preset, *, bounded: bool) -> Kernels:
    """Return the operations at the preset's levels. Where memory was named (``bounded``), those that may take memory
    which no plan knows are PyTorch's own."""
    own = {name: "native" for name in OPERATIONS if bounded and operation_of(name).unplanned}
    return Kernels({**preset.levels, **own})


@contextmanager
def backend_settings(
    preset: Preset,
    dtype: torch.dtype,
    *,
    bounded: bool = False,
    steps: bool = False,
    device: torch.device | None = None,
) -> Iterator[None]:
    """cuDNN as the preset wants it, and exact float32 (no TF32), for the length of a call that computes in ``dtype``.

    steps: the call is one of many alike, the steps of a clip. Where the preset wants cuDNN's search for the fastest
    algorithm, there is none all the same in float32, where it lasts (H200, SDXL at 2048x2048: 139 s until the first
    result, 11 s without, and then as fast), nor where memory was named (``bounded``): it tries algorithms that take
    gigabytes (measured: up to 3 GiB). device: where the call computes; None: anywhere. Settings of other devices
    are left alone, and precision is in the lower types: their products have operands of their own type, and how a GPU
    adds those up (``allow_bf16_reduced_precision_reduction`` and the like) is the caller's choice, as it is in the
    model's own call.
    """
    kinds = ("cuda", "cpu", "xpu") if device is None else (device.type,)
    wanted = steps if preset.cudnn_benchmark == "steps" else bool(preset.cudnn_benchmark)
    lower = dtype in (torch.bfloat16, torch.float16)
    with ExitStack() as settings:
        if "cuda" in kinds:
            settings.enter_context(cudnn_search.borrowed(wanted and lower and not bounded))
        if dtype == torch.float32:
            for kind in kinds:
                settings.enter_context(exact_float32.borrowed(kind))
        yield
