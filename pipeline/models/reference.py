"""The reference: the call whose numbers the engine reproduces, and the few substitutions it takes to capture it.

The reference is one call of the model's own ``encode`` or ``decode`` on the whole input, with every blended tiling off.
Loops over temporal chunks with caches that a model runs by itself belong to it. Each (a family says it) changes how the
reference is reached, not what it computes, and has a test of its own.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from tvae.pipeline.models.calls import Side
from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.recognise import family_of

__all__ = ["BLENDED", "TILED", "call_reference", "reference_mode", "released_tiled", "skeleton", "unhooked"]

_log = logging.getLogger("tvae")

BLENDED = ("use_tiling", "use_slicing", "use_framewise_encoding", "use_framewise_decoding")
TILED = "it was released with blended tiles, which make its numbers and are not supported yet"
"""Why a model is refused for which ``released_tiled`` is true."""


def released_tiled(module: nn.Module) -> bool:
    """Return whether a new model of this class and configuration has blended tiling on.

    What was called on this one since, such as ``enable_tiling()``, makes no difference.
    """
    if not hasattr(module, "use_tiling"):
        return False
    config: Mapping[str, Any] = getattr(module, "config", {})
    try:
        names = inspect.signature(type(module)).parameters
        with torch.device("meta"):
            new = type(module)(**{name: config[name] for name in names if name in config})
        return bool(new.use_tiling)
    except Exception as error:  # a class that wants more than its configuration
        _log.debug("cannot make a new %s from its configuration: %s", type(module).__name__, error)
        return False


@contextmanager
def reference_mode(module: nn.Module) -> Iterator[None]:
    """The module as the reference wants it: PyTorch's layers in evaluation, no blended tiling. All is restored
    afterwards. A part of another class may ask for ``training`` itself."""
    before = {name: getattr(module, name) for name in BLENDED if hasattr(module, name)}
    training = [m for m in module.modules() if m.training and type(m).__module__.startswith("torch.nn.")]
    try:
        for name in before:
            setattr(module, name, False)
        for submodule in training:
            submodule.training = False
        with ExitStack() as patches:
            for family in FAMILIES.values():
                patches.enter_context(family.patched(module))
            yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)
        for submodule in training:
            submodule.training = True


@contextmanager
def unhooked(module: nn.Module) -> Iterator[None]:
    """Without the hook by which accelerate brings the model to its device before each call: the exporter makes that
    call with weights that cannot be moved."""
    hook = module.__dict__.pop("_hf_hook", None)
    try:
        yield
    finally:
        if hook is not None:
            module.__dict__["_hf_hook"] = hook


def call_reference(module: nn.Module, side: Side, *args: Any, **kwargs: Any) -> Any:
    """The model's own ``encode`` or ``decode``, or its substitute. To be called within ``reference_mode``."""
    family = FAMILIES.get(family_of(module) or "")  # of the class's own calls, not of what replaces them
    substitute = None if family is None else family.substitution
    if substitute is not None:
        run: Callable[..., Any] = substitute.encode if side == "encode" else substitute.decode
        return run(module, *args, **kwargs)
    return getattr(module, side)(*args, **kwargs)


def skeleton(module: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """The module's structure with empty parameters of another floating type, or of their own: enough to capture it, no
    weight copied."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        empty = torch.empty_like(tensor, dtype=kind, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
        vars(memo[id(tensor)]).update(vars(tensor))  # what somebody else keeps there
    return copy.deepcopy(module, memo)
