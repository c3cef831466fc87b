"""Weights of a single number, by whose value a model decides or computes in Python: ``if not self.initialised``,
``self.scale.item()``, ``float(self.temperature)``.

The exporter's tensors have no values. One may carry a constant: what is computed of constants alone is one, too, until
it is written to, and to read it gives its value. So a value that is read becomes a part of the graph, and all else
computes with the weight. Who gives numbers here sees to it that the graph serves no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["is_number", "known_numbers", "numbers_of"]


def numbers_of(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of one number that have a value, by name, those of several names under each."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: t for name, t in named if is_number(t)}


def is_number(tensor: Tensor) -> bool:
    """Has it one value, which can be read?"""
    return tensor.numel() == 1 and tensor.layout is torch.strided and not tensor.is_meta


@contextmanager
def known_numbers(model: nn.Module, numbers: Mapping[str, Tensor]) -> Iterator[None]:
    """Within a trace of the model its weights of these names have these values, of which they get copies: the model
    may write to them."""
    given: list[Any] = []
    for name, weight in numbers_of(model).items() if numbers else ():
        if name in numbers and isinstance(weight, FakeTensor) and weight.fake_device.type != "meta":
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                value = numbers[name].detach().to(weight.fake_device, weight.dtype, copy=True)
            weight.constant = value
            weight.fake_mode.fake_tensor_converter.add_constant_storage_mapping(weight)
            given.append(weight)
    try:
        yield
    finally:
        for weight in given:
            weight.constant = None
