"""A small model in the style of research code, and changes of every kind that people make to such between calls."""

from __future__ import annotations

import functools
import os
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import settings_of_research
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

__all__ = ["CHANGES", "Research", "undone"]

GLOBAL: dict[str, Any] = {"gain": 1.0, "flag": True}
SHIFT = torch.zeros(4, 1, 1)
LOCAL = threading.local()
STATIC, OF_CLASS, CACHED = 1.0, 1.0, 1.0
"""Read by functions that something wraps."""


class Helper:
    """No module."""

    __slots__ = ("gain", "shift")

    def __init__(self) -> None:
        self.gain, self.shift = 1, torch.ones(4, 1, 1)

    def __call__(self, h: Tensor) -> Tensor:
        return h * (self.gain if isinstance(self.gain, int) else 2 * self.gain) + self.shift


class Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("q", torch.randint(-100, 100, (4, 4)).to(torch.int8))
        self.register_buffer("scale", torch.rand(4, 1) * 0.02)
        self.coarse = nn.Parameter(torch.randn(4, 4).to(torch.float8_e4m3fn), requires_grad=False)

    def forward(self, h: Tensor) -> Tensor:
        tokens = h.permute(0, 2, 3, 1)
        y = F.linear(tokens, self.q.to(h.dtype) * self.scale) + F.linear(tokens, self.coarse.to(h.dtype))
        return y.permute(0, 3, 1, 2)


class Adapted(nn.Module):
    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.down, self.up = base, nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1)
        self.scale: Any = 1.0

    def forward(self, h: Tensor) -> Tensor:
        y: Tensor = self.base(h)
        return y + self.up(self.down(h)) * self.scale if self.scale is not None else y


class Research(nn.Module):
    gain: Any = 1.0

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm: nn.Module = nn.BatchNorm2d(4)
        self.quantised, self.helper = Quantised(), Helper()
        self.flag: Any = True
        self.shown: Any = {"a": 1, "b": [1.0, 2]}
        self.register_buffer("kept", torch.linspace(1, 2, 8)[::2].view(1, 4, 1, 1))
        self.register_buffer("passing", torch.linspace(2, 1, 4).view(1, 4, 1, 1), persistent=False)
        self.constant = torch.linspace(0.5, 1, 8)[::2].view(1, 4, 1, 1)
        self.listed = [torch.full((4, 1, 1), 1.2)]
        self.array = np.linspace(1, 2, 4, dtype=np.float32)
        self.eval()

    def encode(self, x: Tensor) -> Tensor:
        h = self.norm(self.second(F.silu(self.first(x)))) * self.kept * self.passing * self.constant * self.listed[0]
        h = h * torch.from_numpy(self.array).view(1, 4, 1, 1) * self.gain * GLOBAL["gain"] + SHIFT
        h = self.helper(h) + self.quantised(h) + (1 if self.flag is True else 2) + (1 if GLOBAL["flag"] is True else 2)
        for name, value in self.shown.items():
            h = h * (value if name == "a" and isinstance(value, int) else 1.5) + 1
        h = h * self.fixed() * self.of_class() * uncached()
        return (
            asked_inside(self.part(h), Research)
            * (2 if self.quantised.training else 3)
            * float(os.environ["RESEARCH_GAIN"])
        )

    decode = encode

    @staticmethod
    def fixed() -> float:
        return STATIC

    @classmethod
    def of_class(cls) -> float:
        return OF_CLASS

    def part(self, h: Tensor) -> Tensor:
        return h


@functools.lru_cache(maxsize=0)
def uncached() -> float:
    return CACHED


def asked_inside(h: Tensor, kind: type) -> Tensor:
    """What research code imports where it needs it, and holds for each thread."""
    import settings_of_research
    from settings_of_research import GAIN, scaled

    here = getattr(LOCAL, "gain", 1.0)
    return scaled(h) * GAIN * settings_of_research.SHARE * here if kind is Research else h


def kernel(part: nn.Module) -> nn.Parameter:
    """Of a convolution of 3x3, whatever has been made of it."""
    return next(p for p in part.parameters() if p.shape[2:] == (3, 3))


def as_another_view(m: Research) -> None:
    kernel(m.second).data = kernel(m.second).data.transpose(0, 1)


def as_other_elements(m: Research) -> None:
    for held in (m.kept, m.constant):
        held.data = held.data.as_strided((1, 4, 1, 1), (4, 1, 1, 1))


def as_part_of_another(m: Research) -> None:
    kernel(m.second).data = torch.randn(2, 4, 4, 3, 3)[1]


def written_in_secret(m: Research) -> None:
    kernel(m.second).data.mul_(1.5)
    kernel(m.first).detach().numpy()[...] *= 1.5
    torch._foreach_mul_([m.kept.data, m.constant.data, m.listed[0].data, m.helper.shift.data], 1.5)
    m.passing.numpy()[...] *= 1.5
    m.quantised.q.data[0] = 7
    m.quantised.coarse.data.copy_(torch.randn(4, 4))


def small_constants(m: Research) -> None:
    m.constant.numpy()[...] += 1
    m.listed[0].data.add_(1)
    m.helper.shift.detach().add_(1)
    SHIFT.data.add_(0.5)
    m.array[0] += 1


def training_of_a_part(m: Research) -> None:
    m.quantised.train(not m.quantised.training)


def hooked(m: Research) -> None:
    m.second.register_forward_hook(lambda _m, _args, out: out * 1.5)
    m.second.register_forward_pre_hook(lambda _m, args: (args[0] + 1,))


def unhooked(m: Research) -> None:
    m.second._forward_hooks.clear()


def adapted(m: Research) -> None:
    m.second = Adapted(m.second)
    m.second.scale = torch.tensor(0.7)


def adapters_scale(m: Research) -> None:
    if isinstance(m.second, Adapted):
        m.second.scale.data.mul_(2)
    else:
        m.second = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3, padding=1))


def normalised(m: Research) -> None:
    m.first = parametrizations.spectral_norm(nn.Conv2d(3, 4, 3, padding=1)).eval()
    m.first.parametrizations.weight.original.data.add_(0.1)


def forward_replaced(m: Research) -> None:
    before = m.norm.forward
    m.norm.forward = functools.partial(lambda k, x: before(x) * k, 1.5)


def method_replaced(m: Research) -> None:
    before = m.part
    m.part = types.MethodType(lambda _self, h: before(h) + 1, m)  # type: ignore[method-assign]


def assigned(m: Research) -> None:
    state = {k: v.clone() * 1.5 if v.dtype == torch.float32 else v.clone() for k, v in m.state_dict().items()}
    m.load_state_dict(state, assign=True)


def exchanged(m: Research) -> None:
    m.norm = nn.Sequential(m.norm, nn.Tanh())


def buffers_replaced(m: Research) -> None:
    m.kept = torch.randn(1, 4, 1, 1)
    m.register_buffer("passing", torch.randn(1, 1, 1, 1), persistent=False)


def there_and_back(m: Research) -> None:
    m.first.to(torch.bfloat16).to(torch.float32)


CHANGES: dict[str, Callable[[Research], None]] = {
    f.__name__: f
    for f in (
        *(as_another_view, as_other_elements, as_part_of_another, written_in_secret, small_constants, adapted),
        *(training_of_a_part, hooked, unhooked, adapters_scale, normalised, forward_replaced, method_replaced),
        *(assigned, exchanged, buffers_replaced, there_and_back),
    )
}


@contextmanager
def undone(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[None]:
    """What changes do outside of models is undone after this block. cache: folder of the graphs on disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("RESEARCH_GAIN", "1")
    monkeypatch.setattr(Research, "gain", 1.0)
    monkeypatch.setitem(globals(), "SHIFT", torch.zeros(4, 1, 1))
    with torch.no_grad():
        yield
    GLOBAL.update(gain=1.0, flag=True)
    globals().update(STATIC=1.0, OF_CLASS=1.0, CACHED=1.0)
    vars(LOCAL).clear()
    settings_of_research.reset()
