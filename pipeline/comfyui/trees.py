"""Copies of a tree of modules: one with weights of its own, and one that looks at the same weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["attention", "cleaned", "own_weights"]

_BOOKKEEPING = {
    *("device", "current_patcher", "current_weight_patches_uuid", "dynamic_vbars", "lowvram_patch_counter"),
    *("model_loaded_weight_memory", "model_lowvram", "model_offload_buffer_memory", "skip_injection"),
    *("comfy_cast_weights", "comfy_force_cast_weights", "comfy_patched_weights", "prev_comfy_cast_weights"),
    *("bias_function", "bias_lowvram_function", "weight_function", "weight_lowvram_function"),
    *("_pin", "_pin_hostbuf", "_v", "_v_bias", "_v_signature", "_v_weight", "pin_failed", "seed_key"),
}
"""What ComfyUI's patchers write into modules, about where their weights are."""
_STORED_TYPE = "_comfy_model_dtype"

Tensors = dict[str, Tensor | None]


def own_weights(model: nn.Module) -> nn.Module:
    """The same modules with parameters of their own, to be moved by themselves. Until then the memory is shared."""
    with torch.inference_mode(False), torch.no_grad():
        return _copied(model, lambda tensors: {name: _own(t) for name, t in tensors.items()}, {})


def cleaned(model: nn.Module) -> nn.Module:
    """The same modules with the same weights, also after ComfyUI has moved or replaced those, without what it notes
    about them, and with ``attention`` in the place of the one that it chose: that may depend on free memory."""
    found = _copied(model, lambda tensors: tensors, {})
    for part in found.modules():
        if callable(vars(part).get("optimized_attention")):
            part.optimized_attention = attention  # type: ignore[assignment]
    return found


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention with one head over all positions. Each [N, C, ...], with the positions in any number of dimensions."""
    heads = [t.reshape(t.shape[0], 1, t.shape[1], -1).transpose(2, 3) for t in (q, k, v)]
    return scaled_dot_product_attention(heads[0], heads[1], heads[2]).transpose(2, 3).reshape(q.shape)


def _own(t: Tensor | None) -> Tensor | None:
    if t is None:
        return None
    return nn.Parameter(t.detach(), requires_grad=False) if isinstance(t, nn.Parameter) else t.detach()


def _copied(module: nn.Module, tensors: Callable[[Tensors], Tensors], done: dict[int, nn.Module]) -> nn.Module:
    """A module that stands at several places does so in the copy, too."""
    if id(module) in done:
        return done[id(module)]
    copy = done[id(module)] = object.__new__(type(module))
    for name, value in vars(module).items():
        if name not in _BOOKKEEPING and not name.endswith(_STORED_TYPE):
            copy.__dict__[name] = value
    for registry in ("_parameters", "_buffers"):
        copy.__dict__[registry] = tensors(vars(module)[registry])
    children = vars(module)["_modules"]
    copy.__dict__["_modules"] = {
        name: None if child is None else _copied(child, tensors, done) for name, child in children.items()
    }
    return copy
