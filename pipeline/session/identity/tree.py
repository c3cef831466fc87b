"""A module's own state, as an identity sees it: what counts, and what is no part of what the module computes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MethodType
from typing import Any

from torch import nn

__all__ = ["FORWARD_HOOKS", "GLOBAL_HOOKS", "NO_PART", "REGISTRIES", "derived", "moved_by_accelerate"]

REGISTRIES = ("_parameters", "_buffers", "_modules")
FORWARD_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
GLOBAL_HOOKS = ("_global_forward_pre_hooks", "_global_forward_hooks")

NO_PART = {
    *(*REGISTRIES, *FORWARD_HOOKS, "training", "_non_persistent_buffers_set", "_forward_hooks_always_called"),
    *("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs"),
    *("_backward_pre_hooks", "_backward_hooks", "_is_full_backward_hook", "_state_dict_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_compiled_call_impl", "_is_torch_compile"),
}
"""Attributes of every module that are looked at in another way, or that no result without gradients depends on."""

_COMPILED = ("torch._dynamo.eval_frame", "OptimizedModule")
_NORMALISERS = ("torch.nn.utils.weight_norm", "torch.nn.utils.spectral_norm")
_MOVERS = {"AlignDevicesHook", "CpuOffload"}


def derived(module: nn.Module) -> set[str]:
    """Names in ``vars(module)`` that are no state of its own: each call sets them again from the module."""
    kind = type(module)
    if (kind.__module__, kind.__name__) == _COMPILED:  # computes what the module in it computes
        return {*vars(module)}
    hooks = vars(module).get("_forward_pre_hooks") or {}
    return {hook.name for hook in hooks.values() if type(hook).__module__ in _NORMALISERS}


def moved_by_accelerate(state: Mapping[str, Any]) -> set[str]:
    """Names that accelerate put into a module to bring its weights to the device, and that change nothing else."""
    hook = state.get("_hf_hook")
    if hook is None or not _moves(hook):
        return set()
    found = {"_hf_hook"}
    forward = state.get("forward")
    if isinstance(forward, partial) and forward.func.__module__ == "accelerate.hooks":
        found.add("forward")
    before = state.get("_old_forward")  # a forward that someone patched before counts under this name
    if isinstance(before, MethodType) and before.__func__ is getattr(type(before.__self__), "forward", None):
        found.add("_old_forward")
    return found


def _moves(hook: Any) -> bool:
    kind = type(hook)
    if kind.__module__ != "accelerate.hooks":
        return False
    return all(map(_moves, hook.hooks)) if kind.__name__ == "SequentialHook" else kind.__name__ in _MOVERS
