"""A VAE module that the caller owns: what it and its inputs must be, its configuration, and whose turn it is."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from operator import index
from typing import Any

import torch
from torch import Tensor, nn

from tvae.pipeline.errors import UnsupportedOp, UsageError
from tvae.pipeline.models.calls import SIDES, Side
from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.one_side import check_side
from tvae.pipeline.models.recognise import family_of
from tvae.pipeline.models.reference import TILED, released_tiled
from tvae.pipeline.session.turns import Turns

__all__ = [
    "bring_weights",
    "check_hooks",
    "check_input",
    "check_place",
    "checked_module",
    "compute_dtype",
    "config_of",
    "input_at_fault",
    "lock_of",
    "planned_input",
    "typical_weight",
]

_INSTEAD = "; enable_model_cpu_offload() works, and TiledVAE(vae, vram=...) bounds memory"
_LOCKS: weakref.WeakKeyDictionary[nn.Module, Turns] = weakref.WeakKeyDictionary()
_ONE_LOCK_EACH = threading.Lock()
_COMPUTED = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""Types of weights that inputs may be of; others are stored in parts of a model, packed or quantised."""
_LARGEST = 2**63 - 1
"""Bytes that PyTorch can count of a tensor."""


def checked_module(vae: nn.Module) -> nn.Module:
    """The module. Raises UsageError for one without ``encode`` or ``decode``, or without weights, for TorchScript,
    whose code cannot be captured nor watched, and for a model that was released with tiles."""
    name = type(vae).__name__
    lacking = [side for side in ("encode", "decode") if not callable(getattr(vae, side, None))]
    if lacking:
        raise UsageError(f"{name} has no {lacking[0]}(); TiledVAE wraps modules with encode and decode")
    if next(iter(vae.parameters()), None) is None:
        raise UsageError(f"{name} has no parameters: wrap a model with weights")
    for part, found in vae.named_modules():
        if isinstance(found, torch.jit.ScriptModule):
            which = f"'{part}' of {name} is" if part else f"{name} is"
            raise UsageError(f"{which} TorchScript: wrap the model as it was before torch.jit")
    if released_tiled(vae):
        raise UsageError(f"TiledVAE does not run {name}: {TILED}")
    return vae


def check_hooks(vae: nn.Module) -> None:
    """Raises UsageError where hooks move or cast the weights of parts of the module within a call: what is captured is
    the call without them."""
    for name, part in vae.named_modules():
        registry, hook = part.__dict__.get("_diffusers_hook"), part.__dict__.get("_hf_hook")
        found = next(iter(getattr(registry, "hooks", ())), None)
        if found is not None:
            raise UsageError(f"diffusers' hook '{found}' is on the VAE's '{name}': leave the VAE out of it{_INSTEAD}")
        if getattr(hook, "offload", False):
            raise UsageError(f"accelerate moves the VAE's weights part by part: leave the VAE out of it{_INSTEAD}")


def bring_weights(*modules: nn.Module) -> None:
    """To the device: accelerate's CPU offload does so before a call."""
    for hooked in modules:
        hook: Any = hooked.__dict__.get("_hf_hook")
        if hasattr(hook, "pre_forward"):
            hook.pre_forward(hooked)


def check_input(side: Side, x: Tensor, vae: nn.Module, devices: Sequence[torch.device]) -> None:
    """Raises UsageError for an input of another device, type or rank than the module's, one that requires grad, and
    what is no dense tensor; and as ``check_place``."""
    if not isinstance(x, Tensor):
        raise UsageError(f"{side}() takes a tensor, not {type(x).__name__}")
    if x.is_nested:
        raise UsageError(f"{side}() takes a tensor of one size; this one is nested: call it on each of x.unbind()")
    if x.layout != torch.strided:
        raise UsageError(f"{side}() takes a dense tensor; this one is {x.layout}: call to_dense() first")
    weight = typical_weight(vae, x.dtype)
    if torch.is_grad_enabled() and x.requires_grad:
        raise UsageError(f"{side}() runs without gradients: call it on x.detach(), or train with the wrapped model")
    if x.ndim < 4 or 0 in x.shape:
        raise UsageError(f"{side}() takes [N, C, H, W] or [N, C, T, H, W] with no size of 0, not {list(x.shape)}")
    if x.device != weight.device or not _takes(x, weight):
        check_hooks(vae)
        have, want = f"{x.dtype} on {x.device}", f"{weight.dtype} on {weight.device}"
        raise UsageError(f"{side}() got {have.replace('torch.', '')}, the VAE is {want.replace('torch.', '')}")
    check_place(side, x.device, devices)


def _takes(x: Tensor, weight: Tensor) -> bool:
    """Is an input of the type of the weights, or under ``torch.autocast``, which would cast either?"""
    cast = {x.dtype, weight.dtype} <= {torch.float32, torch.bfloat16, torch.float16}
    return x.dtype == weight.dtype or (cast and torch.is_autocast_enabled(x.device.type))


def planned_input(side: Side, shape: Sequence[int], vae: nn.Module, devices: Sequence[torch.device]) -> Tensor:
    """Stands for an input of this shape of which a plan is asked. Raises UsageError for what is none, as
    ``check_input``."""
    if side not in SIDES:
        raise UsageError(f"plan() is of one of {', '.join(SIDES)}, not {side!r}")
    try:
        sizes = tuple(map(index, shape))
    except TypeError:
        raise UsageError(f"plan() takes the shape of an input, such as (1, 4, 64, 64), not {shape!r}") from None
    if len(sizes) < 4 or min(sizes) < 1:
        raise UsageError(f"{side}() takes [N, C, H, W] or [N, C, T, H, W] with no size below 1, not {[*sizes]}")
    weight = typical_weight(vae)
    check_place(side, weight.device, devices)
    if prod(sizes) * weight.dtype.itemsize > _LARGEST:
        raise UsageError(f"no tensor is as large as {[*sizes]}")
    return torch.empty(sizes, dtype=weight.dtype, device="meta")


@contextmanager
def input_at_fault(side: Side, x: Tensor, vae: nn.Module) -> Iterator[None]:
    """A model that cannot be captured with an input that is not for it is not at fault: raises UsageError then. That
    cannot be told before, since a class may take more than its configuration says. A side without weights can."""
    check_side(vae, side)
    try:
        yield
    except UnsupportedOp as error:
        config, family = config_of(vae), FAMILIES.get(family_of(vae) or "")
        names = ("in_channels",) if side == "encode" else ("latent_channels", "z_dim")
        wanted = next((config[name] for name in names if isinstance(config.get(name), int)), None)
        if family is not None and family.kind == "image" and x.ndim != 4:
            raise UsageError(
                f"{side}() got {list(x.shape)}: {type(vae).__name__} takes pictures, [N, C, H, W]"
            ) from error
        if wanted is not None and x.shape[1] != wanted:
            what = "channels" if side == "encode" else "latent channels"
            raise UsageError(f"{side}() got {list(x.shape)}: this VAE has {wanted} {what}, not {x.shape[1]}") from error
        raise


def typical_weight(vae: nn.Module, dtype: torch.dtype | None = None) -> Tensor:
    """A parameter by whose type and device the module goes: of this type where there is one, else of the type that most
    of its numbers have."""
    found = next((weight for weight in vae.parameters() if weight.dtype == dtype), None)
    if found is not None:
        return found
    weights = [*vae.parameters()]
    amounts: Counter[torch.dtype] = Counter()
    for weight in weights:
        amounts[weight.dtype] += weight.numel() if weight.dtype in _COMPUTED else 0
    most = max(amounts, key=amounts.__getitem__)
    return next(weight for weight in weights if weight.dtype == most)


def check_place(side: Side, device: torch.device, devices: Sequence[torch.device]) -> None:
    """Raises UsageError for a module that is on another device than the first of those that are to share its calls."""
    if devices and device != devices[0]:
        named = ", ".join(map(str, devices))
        raise UsageError(f"{side}() is to run on {named}, and the VAE is on {device}: move it to {devices[0]} first")


def config_of(vae: nn.Module) -> Mapping[str, Any]:
    """Its configuration, empty where it has none."""
    config = getattr(vae, "config", None)
    return config if isinstance(config, Mapping) else {}


def compute_dtype(vae: nn.Module, dtype: torch.dtype) -> torch.dtype:
    """The type to compute in, of inputs of this type: float16 overflows in some models, which say so."""
    forced = config_of(vae).get("force_upcast", False)
    return torch.float32 if forced and dtype == torch.float16 else dtype


def lock_of(vae: nn.Module) -> Turns:
    """The module's own: while it is captured, its weights are the exporter's."""
    with _ONE_LOCK_EACH:
        return _LOCKS.setdefault(vae, Turns())
