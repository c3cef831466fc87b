"""Level 4: Triton kernels for tensors with channels innermost, in bfloat16, float16 and float32.

``sample`` is left out: PyTorch's addcmul is one pass already. The conversions of frames are left out: they are bound by
the way to the device.
"""

from __future__ import annotations

import logging
import subprocess
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import triton
from triton.compiler import make_backend
from triton.errors import TritonError
from triton.runtime import build

from tvae.kernels.registry import Failed
from tvae.kernels.triton.attention import wide_attention
from tvae.kernels.triton.conv_add import conv_add
from tvae.kernels.triton.down_conv import down_conv
from tvae.kernels.triton.enlarge_conv import enlarge_conv
from tvae.kernels.triton.finish import finish_stats
from tvae.kernels.triton.launch import INTERPRETED
from tvae.kernels.triton.linear import linear
from tvae.kernels.triton.merge import merge_stats
from tvae.kernels.triton.narrow import conv_from_few, conv_to_few
from tvae.kernels.triton.norm import norm_act
from tvae.kernels.triton.rms import rms_norm_act
from tvae.kernels.triton.shuffle import shuffle_up
from tvae.kernels.triton.spread import enlarge, pad
from tvae.kernels.triton.statistics import add_stats, group_stats
from tvae.kernels.triton_launchers import load_apart
from tvae.kernels.triton_needs import OLDEST
from tvae.kernels.triton_reading import read_triton

__all__ = ["IMPLEMENTATIONS", "missing", "prepare"]


def _built(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel, with a failure to build it here told as one: another level computes then."""

    @wraps(kernel)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return kernel(*args, **kwargs)
        except TritonError as error:
            if INTERPRETED:
                raise
            raise Failed(f"Triton cannot build it: {str(error).strip().splitlines()[0]}") from error

    return run


IMPLEMENTATIONS = {
    fn.__name__: _built(fn)
    for fn in (
        *(group_stats, merge_stats, finish_stats, norm_act, add_stats),
        *(rms_norm_act, pad, enlarge, shuffle_up, conv_add, down_conv, enlarge_conv, conv_from_few, conv_to_few),
        *(wide_attention, linear),
    )
}
"""Operation -> its kernel."""
_log = logging.getLogger("tvae")
load_apart(build)  # before any kernel is built


def missing() -> str | None:
    """Why this level cannot run on this machine, or None. Triton's interpreter counts: it computes, slowly."""
    if INTERPRETED:
        return None
    if not torch.cuda.is_available():
        return "no CUDA GPU"
    if torch.version.hip is None and torch.cuda.get_device_capability() < OLDEST:
        return f"the GPU's compute capability is below {OLDEST[0]}.{OLDEST[1]}"
    try:
        triton.runtime.driver.active.get_current_target()  # builds its launcher where that is not cached
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        return f"Triton does not start ({error})"
    return None


def prepare(_operations: set[str], _dtype: torch.dtype, _device: int) -> None:
    """Begin what Triton does once before it builds anything; a build waits for it."""
    threading.Thread(target=_begin, name="tvae-read", daemon=True).start()


def _begin() -> None:
    try:  # a process of the compiler is asked for its version, by each thread that builds before one was told
        make_backend(triton.runtime.driver.active.get_current_target()).hash()
    except Exception:  # whatever it is, a build says it better
        _log.debug("Triton's compiler does not say which it is", exc_info=True)
    read_triton()
