"""Give a traced model the values of weights of a single number that its Python code reads.

Examples are ``if not self.initialised``, ``self.scale.item()``, ``float(self.temperature)``. The exporter's tensors
have no values, but one may carry a constant: what is computed of constants is constant, too, until it is written to.
So a value that is read becomes part of the graph, and all else computes with the weight. The caller makes sure that
the graph serves no other values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["is_scalar", "known_scalars", "scalar_weights"]


def scalar_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of one readable number, by each of their names."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: t for name, t in named if is_scalar(t)}


def is_scalar(tensor: Tensor) -> bool:
    """Return whether a tensor has one value, which can be read."""
    return tensor.numel() == 1 and tensor.layout is torch.strided and not tensor.is_meta


@contextmanager
def known_scalars(model: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Give the model's weights these values, by name, while it is traced. It gets copies, as it may write to them."""
    set_here: list[Any] = []
    for name, weight in scalar_weights(model).items() if values else ():
        if name in values and isinstance(weight, FakeTensor) and weight.fake_device.type != "meta":
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                value = values[name].detach().to(weight.fake_device, weight.dtype, copy=True)
            weight.constant = value
            weight.fake_mode.fake_tensor_converter.add_constant_storage_mapping(weight)
            set_here.append(weight)
    try:
        yield
    finally:
        for weight in set_here:
            weight.constant = None
