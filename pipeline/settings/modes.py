"""Modes that a caller has switched on around a call, and that are none of the model's: off for the length of the call.
``torch.autocast`` around a call allows PyTorch to round more, and what is computed without it is no less exact.

All of them belong to the calling thread. What belongs to the process (default type, default device, deterministic
algorithms) is left alone; whatever it can change is kept under a name that says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.overrides import _get_current_function_mode_stack

from tvae.pipeline.errors import UsageError

__all__ = ["of_the_process", "plain_modes"]


def of_the_process() -> tuple[str, str, bool]:
    """What a model's result depends on besides the model and its inputs."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    return str(torch.get_default_dtype()), str(torch.get_default_device()), deterministic


@contextmanager
def plain_modes(device: torch.device) -> Iterator[None]:
    """Without autocast, gradients and inference mode. Raises UsageError inside a transform of ``torch.func``, and under
    FakeTensorMode, whose tensors would be kept for later calls, and under a mode of the caller's own that functions of
    PyTorch go through: it may change what they compute, and so what is captured."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise UsageError("a VAE in strips cannot run inside torch.func transforms (vmap, grad, ...): call it outside")
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        raise UsageError("a VAE in strips cannot run under FakeTensorMode: call the wrapped model there")
    for mode in _get_current_function_mode_stack():
        if not type(mode).__module__.startswith("torch."):  # PyTorch's own: `with torch.device(...)`
            raise UsageError(f"a VAE in strips cannot run under {type(mode).__name__}: call the wrapped model there")
    with ExitStack() as modes:
        for kind in {device.type, "cpu"}:
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.no_grad())
        yield
