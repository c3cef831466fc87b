"""The tensors that a module of some configuration has, and the module that some tensors make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.tensor_header import TensorSpec
from tvae.pipeline.models import kl
from tvae.pipeline.models.bounded_build import bounded_build
from tvae.pipeline.models.calls import Side
from tvae.pipeline.models.one_side import leave_out
from tvae.pipeline.models.own_classes import class_named

__all__ = ["expected_shapes", "filled_module"]


def expected_shapes(
    class_name: str, config: Mapping[str, Any], stored: Mapping[str, TensorSpec], *, halves: int = 1
) -> dict[str, tuple[int, ...]] | None:
    """Shapes by name, as in its ``state_dict``. None: the class takes no such configuration, or asks for far more than
    is stored. halves: 2, if what is stored is one side of it. diffusers is imported for it, but not for an
    AutoencoderKL."""
    if class_name == kl.CLASS_NAME:
        layers = kl.config_of(config)
        if layers is None:
            return None
        graphs = (kl.graph_of(layers, side, 1, torch.float32) for side in ("encode", "decode"))
        params = (node for graph in graphs for node in graph.nodes if node.kind == "param")
        return {node.target: tuple(n for n in node.meta.shape if isinstance(n, int)) for node in params}
    class_named(class_name)  # what modules make at import must not be shapes alone
    try:
        with torch.device("meta"):
            module = new_module(class_name, config, stored, halves)
    except (UsageError, ValueError, TypeError, KeyError, IndexError, RuntimeError, AttributeError, ZeroDivisionError):
        return None  # a configuration that was read off odd shapes: they are no such module's
    return {name: tuple(value.shape) for name, value in module.state_dict().items()}


def filled_module(
    class_name: str, config: Mapping[str, Any], weights: Mapping[str, Tensor], lacks: Mapping[Side, str]
) -> nn.Module:
    """A module whose weights are these very tensors. Their names and shapes have been compared. lacks: sides that have
    none, and what to say where one is called."""
    stored = {name: TensorSpec("", tuple(w.shape)) for name, w in weights.items()}
    with _unset():
        module = new_module(class_name, config, stored, 1 + len(lacks))
    for side, reason in lacks.items():
        leave_out(module, side, reason)
    module.load_state_dict(weights, strict=False, assign=True)  # counters may be missing
    return module


def new_module(
    class_name: str, config: Mapping[str, Any], stored: Mapping[str, TensorSpec], halves: int = 1
) -> nn.Module:
    """A module with weights of no meaning, no larger than what is stored justifies. halves: see ``expected_shapes``."""
    found = class_named(class_name)
    if found is None:
        raise UsageError(f"class '{class_name}' is unknown to diffusers")
    with bounded_build(stored, class_name, halves):
        return found(**config)


class _unset(TorchFunctionMode):
    """While it is active in this thread, tensors are not filled with random numbers, as files give their values."""

    _RANDOM = frozenset({Tensor.uniform_, Tensor.normal_, torch.nn.init.trunc_normal_})

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return args[0] if func in self._RANDOM else func(*args, **kwargs or {})
