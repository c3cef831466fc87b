"""Whatever changes what a module computes is seen; looking changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tvae.pipeline.watch import Watch


class Processed(nn.Module):
    """A layer with a processor that is no module, as diffusers' attention has."""

    def __init__(self) -> None:
        super().__init__()
        self.processor = object()
        self.conv = nn.Conv2d(2, 2, 1)
        self.norm = nn.BatchNorm2d(2)


def written(m: nn.Module) -> None:
    with torch.no_grad():
        m.get_parameter("1.conv.weight").add_(1)


def exchanged(m: nn.Module) -> None:
    part = m.get_submodule("1.conv")
    part.weight = nn.Parameter(torch.zeros_like(m.get_parameter("1.conv.weight")))


def layer_exchanged(m: nn.Module) -> None:
    m.get_submodule("1").conv = nn.Conv2d(2, 2, 1)


def layer_added(m: nn.Module) -> None:
    m.get_submodule("1").more = nn.Identity()


def buffer_written(m: nn.Module) -> None:
    m.get_buffer("1.norm.running_mean").add_(1)


def processor_set(m: nn.Module) -> None:
    m.get_submodule("1").__dict__["processor"] = object()


def bias_removed(m: nn.Module) -> None:
    m.get_submodule("1.conv").bias = None


CHANGES: list[Callable[[nn.Module], object]] = [
    *(written, exchanged, layer_exchanged, layer_added, buffer_written, processor_set, bias_removed),
    lambda m: m.to(torch.float64),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_change_is_seen(change: Callable[[nn.Module], object]) -> None:
    module = nn.Sequential(nn.Conv2d(2, 2, 1), Processed())
    watch = Watch(module)
    assert watch.unchanged()
    change(module)
    assert not watch.unchanged()
    assert Watch(module).unchanged()


def test_running_a_module_is_no_change() -> None:
    module = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)).eval()
    watch = Watch(module)
    with torch.no_grad():
        module(torch.zeros(1, 2, 3, 3))
    assert watch.unchanged()
