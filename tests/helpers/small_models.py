"""Modules of a few operations each, for what the engine does between capture and result. All in float64."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import simplify
from tvae.pipeline.engine.plan.schedule import Schedule, schedule
from tvae.pipeline.engine.run.execute import execute

Outputs = Tensor | tuple[Tensor, ...]


class Block(nn.Module):
    """The layers that the models below are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(4, 8)
        self.norm2 = nn.GroupNorm(2, 8)
        self.mix = nn.Conv2d(8, 8, 3, padding=1)
        self.down = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.last = nn.Conv2d(8, 3, 3, padding=1)
        self.qkv = nn.Linear(8, 24)
        self.scale = nn.Parameter(torch.ones(1, 3, 1, 1))


class Residual(Block):
    """conv, GroupNorm, SiLU, conv, residual: one barrier."""

    def forward(self, x: Tensor) -> Outputs:
        h = self.first(x)
        return h + self.mix(F.silu(self.norm(h)))


class TwoNorms(Block):
    """A residual that spans two barriers, and a whole value that is used behind the second."""

    def forward(self, x: Tensor) -> Outputs:
        h = self.first(x)
        gain = 1 + h.mean((2, 3), keepdim=True).tanh()
        g = self.mix(F.silu(self.norm(h)))
        return self.last(h + self.mix(F.silu(self.norm2(g))) * gain)


class Attention(Block):
    """GroupNorm, attention over all pixels, residual: statistics, then keys and values, are barriers."""

    def forward(self, x: Tensor) -> Outputs:
        h = self.first(x)
        n, c, height, width = h.shape
        tokens = self.norm(h).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(tokens).chunk(3, dim=-1)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.last(h + out.transpose(1, 2).reshape(n, c, height, width))


class LinearAttention(Block):
    """relu(q)·(relu(k)ᵀ·v), normalised: one barrier, of two sums."""

    def forward(self, x: Tensor) -> Outputs:
        h = self.first(x)
        q, k, v = self.qkv(h.flatten(2).transpose(1, 2)).chunk(3, dim=-1)
        q, k = F.relu(q), F.relu(k)
        total = q @ k.sum(1, keepdim=True).transpose(1, 2) + 1e-3
        out = (q @ (k.transpose(1, 2) @ v)) / total
        return self.last(h + out.transpose(1, 2).unflatten(2, h.shape[2:]))


class Convolutions(Block):
    """Down, up and so much padding that whole strips are nothing else: no barrier."""

    def forward(self, x: Tensor) -> Outputs:
        h = self.last(F.silu(self.down(self.first(x))))
        return F.pad(F.interpolate(h, scale_factor=2.0, mode="nearest"), (0, 1, 0, 7), value=2.0)


class PaddedBelow(Block):
    """A convolution of stride 2 over a picture padded to the right and below."""

    def forward(self, x: Tensor) -> Outputs:
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), self.first.weight, stride=2)


class Several(Block):
    """Outputs that are read on, an output twice, a statistic, the input itself, a weight, and a constant with rows."""

    def forward(self, x: Tensor) -> Outputs:
        h = self.first(x)
        g = self.norm(h)
        mean = h.mean((2, 3), keepdim=True)
        y = self.mix(g) * mean
        return h, y, g, h, mean, x, self.scale, torch.zeros_like(x[:, :1]) + 2, torch.ones(1, 1, x.shape[2], 1)


class Noisy(Block):
    """Noise that the model draws by itself, in two places."""

    def forward(self, x: Tensor) -> Outputs:
        h = self.first(x)
        h = h + torch.randn(h.shape[0], 1, *h.shape[2:], dtype=h.dtype)
        return self.norm(h) * torch.randn_like(h)


class Bounded(Block):
    """An operation without a rule along the rows, with windows, a norm and a view behind it."""

    def forward(self, x: Tensor) -> Outputs:
        h = torch.renorm(self.first(x), 2, 1, 1.0)
        h = self.mix(F.silu(self.norm(h)))
        return self.last(h).flatten(2), h[:, :, 1:]


class Nested(Block):
    """An operation without a rule in a module of its own."""

    class Largest(nn.Module):
        """The largest so far of every column."""

        def forward(self, x: Tensor) -> Tensor:
            return torch.cummax(x, 2)[0]

    def __init__(self) -> None:
        super().__init__()
        self.tail = nn.Sequential(nn.SiLU(), self.Largest())

    def forward(self, x: Tensor) -> Outputs:
        return self.last(self.tail(self.first(x)))


class Halved(Block):
    """Operations without a rule that give several results, or read constants with rows."""

    def forward(self, x: Tensor) -> Outputs:
        h = torch.renorm(self.first(x), 2, 1, 1.0)
        value, power = torch.frexp(h)
        ramp = torch.renorm(2 * torch.ones(1, 1, x.shape[2], 1, dtype=x.dtype), 2, 2, 1.0)
        return self.last(h * ramp) + value[:, :1], power


class Spectrum(Block):
    """A Fourier transform along the rows and back."""

    def forward(self, x: Tensor) -> Outputs:
        h = self.first(x)
        return self.last(torch.fft.irfft(torch.fft.rfft(h, dim=3), n=x.shape[3], dim=3)) + self.last(h)


SMALL = (Residual, TwoNorms, Attention, LinearAttention, Convolutions, Several)


@lru_cache
def built(kind: type[Block]) -> Block:
    """The model, its weights drawn with one seed, its norms far from the identity."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.default_generator.manual_seed(5)
        module = kind().double().eval()
        for name, weight in module.named_parameters():
            if "norm" in name or name == "scale":
                weight.copy_(torch.randn_like(weight))
    return module


@lru_cache
def graph_of(kind: type[Block]) -> Graph:
    """The model's graph, captured at a size that no test uses."""
    module = built(kind)

    def call(x: Tensor) -> Sequence[Tensor]:
        out = module(x)
        return out if isinstance(out, tuple) else (out,)

    return simplify(capture(module, call, [torch.zeros(2, 3, 12, 10, dtype=torch.float64)]))


def image(height: int, width: int = 6) -> Tensor:
    """A picture with low frequencies and noise."""
    generator = torch.Generator().manual_seed(height)
    ramp = torch.linspace(-1, 1, height, dtype=torch.float64)[:, None]
    return ramp + 0.5 * torch.randn(2, 3, height, width, generator=generator, dtype=torch.float64)


def eager(kind: type[Block], x: Tensor) -> tuple[Tensor, ...]:
    """The untiled model."""
    with torch.no_grad():
        out = built(kind)(x)
    return out if isinstance(out, tuple) else (out,)


def lower_type(
    kind: type[Block], x: Tensor, strip: int, dtype: torch.dtype
) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    """(strips, untiled, untiled in float64) of the model with its weights and input cast once."""
    module = copy.deepcopy(built(kind)).to(dtype)
    wide = copy.deepcopy(module).double()
    graph = simplify(capture(module, lambda x: [module(x)], [x.to(dtype)]))
    sizes = graph.bind([tuple(x.shape)])
    assert sizes is not None
    plan = schedule(lower(graph, sizes, x.device), strip)
    got = execute(plan, [x.to(dtype)], dict(module.named_parameters()) | graph.constants)
    with torch.no_grad():
        return got, [module(x.to(dtype))], [wide(x.to(dtype).double())]


def planned(kind: type[Block], x: Tensor, strip: int, *, allow_whole: bool = False) -> Schedule:
    """The model's schedule for this input."""
    graph = graph_of(kind)
    sizes = graph.bind([tuple(x.shape)])
    assert sizes is not None
    return schedule(lower(graph, sizes, x.device, allow_whole=allow_whole), strip)


def strips(
    kind: type[Block], x: Tensor, strip: int, *, allow_whole: bool = False, channels_last: bool = False
) -> list[Tensor]:
    """The model strip by strip."""
    plan = planned(kind, x, strip, allow_whole=allow_whole)
    weights = dict(built(kind).named_parameters()) | graph_of(kind).constants
    return execute(plan, [x], weights, channels_last=channels_last)
