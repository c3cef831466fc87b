"""Parts of autoencoders as research repositories write them, each a function of a map [N, 8, H, W]."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

__all__ = ["BLOCKS", "CHANNELS", "WHOLE"]

CHANNELS = 8
Pair = namedtuple("Pair", "mean extra")
Block = Callable[[Any, Tensor], Any]
BLOCKS: dict[str, tuple[Block, dict[str, Callable[[], nn.Module]]]] = {}
"""By name: the function of a module that holds these parts, and of a map."""
WHOLE: set[str] = set()
"""Those that run on the whole value alone."""


def block(*, whole: bool = False, **parts: Callable[[], nn.Module]) -> Callable[[Block], Block]:
    def register(fn: Block) -> Block:
        BLOCKS[fn.__name__] = fn, parts
        WHOLE.update([fn.__name__] if whole else [])
        return fn

    return register


def conv() -> nn.Module:
    return nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)


@block(down=lambda: nn.Linear(CHANNELS, 4), up=lambda: nn.Linear(4, CHANNELS))
def squeeze_and_excite(m: Any, h: Tensor) -> Tensor:
    n, c, _, _ = h.shape
    weights = m.up(F.relu(m.down(F.adaptive_avg_pool2d(h, 1).view(n, c)))).sigmoid()
    return h * weights.view(n, c, 1, 1).expand_as(h) + F.adaptive_max_pool2d(h, 1)


@block(gate=lambda: nn.Conv2d(2, 1, 7, padding=3))
def spatial_attention(m: Any, h: Tensor) -> Tensor:
    return h * m.gate(torch.cat([h.mean(1, keepdim=True), h.max(1, keepdim=True)[0]], 1)).sigmoid()


@block(weighted=lambda: parametrizations.weight_norm(conv()), bounded=lambda: parametrizations.spectral_norm(conv()))
def normalised_weights(m: Any, h: Tensor) -> Tensor:
    return m.bounded(F.mish(m.weighted(h)))


@block(norm=lambda: nn.LayerNorm(CHANNELS), depth=lambda: nn.Conv2d(8, 8, 7, padding=3, groups=8))
def convnext(m: Any, h: Tensor) -> Tensor:
    y = m.norm(m.depth(h).permute(0, 2, 3, 1))
    spread = y.norm(p=2, dim=(1, 2), keepdim=True)
    return h + (y * spread / (spread.mean(-1, keepdim=True) + 1e-6)).permute(0, 3, 1, 2)


@block()
def norms_over_rows(_m: Any, h: Tensor) -> Tensor:
    most = torch.linalg.vector_norm(h, ord=math.inf, dim=(2, 3), keepdim=True)
    return h / h.norm(p=1, dim=2, keepdim=True) + h / most + F.normalize(h, p=3.0, dim=2)


@block()
def pyramid_of_pools(_m: Any, h: Tensor) -> Tensor:
    pooled = [F.adaptive_avg_pool2d(h, size) for size in (1, 2, 3, 6)]
    return torch.cat([h, *(F.interpolate(p, size=h.shape[2:], mode="bilinear", align_corners=True) for p in pooled)], 1)


@block()
def pools_near_by(_m: Any, h: Tensor) -> Tensor:
    largest = F.interpolate(F.adaptive_max_pool2d(h, (4, 3)), size=h.shape[2:])
    return largest + F.interpolate(F.adaptive_avg_pool2d(h, 2), size=h.shape[-2:], mode="bicubic")


@block(mix=lambda: nn.Linear(9, 9, bias=False))
def involution(m: Any, h: Tensor) -> Tensor:
    n, c, height, width = h.shape
    patches = F.unfold(h, 3, padding=1).view(n, c, 9, height, width)
    weights = m.mix(patches.mean(1).movedim(1, -1)).softmax(-1).movedim(-1, 1)
    return (patches * weights[:, None]).sum(2)


@block()
def overlapping_patches(_m: Any, h: Tensor) -> Tensor:
    patches = F.unfold(h, 5, stride=2, padding=2, dilation=1)
    ones = F.unfold(torch.ones_like(h), 5, stride=2, padding=2)
    return F.fold(patches.softmax(1), h.shape[2:], 5, stride=2, padding=2) / F.fold(
        ones, h.shape[2:], 5, stride=2, padding=2
    )


@block(blur=conv)
def antialiased_pyramid(m: Any, h: Tensor) -> Tensor:
    small = F.interpolate(h, scale_factor=0.5, mode="bilinear", antialias=True)
    large = F.interpolate(m.blur(small), size=h.shape[2:], mode="bicubic", antialias=True, align_corners=True)
    return h - large


@block(qkv=lambda: nn.Linear(CHANNELS, 3 * CHANNELS))
def shifted_windows(m: Any, h: Tensor) -> Tensor:
    n, c, height, width = h.shape
    size = 4
    x = F.pad(h, [0, -width % size, 0, -height % size]).roll((-2, -2), (2, 3))
    down, across = x.shape[2] // size, x.shape[3] // size
    tokens = x.view(n, c, down, size, across, size).permute(0, 2, 4, 3, 5, 1).reshape(-1, size * size, c)
    q, k, v = m.qkv(tokens).chunk(3, -1)
    y = F.scaled_dot_product_attention(q, k, v).view(n, down, across, size, size, c).permute(0, 5, 1, 3, 2, 4)
    return y.reshape(x.shape).roll((2, 2), (2, 3))[:, :, :height, :width]


@block(qk=lambda: nn.Linear(CHANNELS, CHANNELS))
def rotary_axes(m: Any, h: Tensor) -> Tensor:
    n, c, height, width = h.shape
    rates = 100.0 ** -(torch.arange(0, c // 2, 2, device=h.device) / (c // 2))
    down = (torch.arange(height, device=h.device)[:, None] * rates)[:, None].expand(-1, width, -1)
    across = (torch.arange(width, device=h.device)[:, None] * rates)[None].expand(height, -1, -1)
    angles = torch.cat([down, across], -1).reshape(height * width, -1).repeat_interleave(2, -1).to(h.dtype)
    tokens = h.flatten(2).mT
    q = m.qk(tokens)
    pairs = q.view(n, -1, c // 2, 2)
    q = q * angles.cos() + torch.stack([-pairs[..., 1], pairs[..., 0]], -1).flatten(2) * angles.sin()
    return F.scaled_dot_product_attention(q[:, None], q[:, None], tokens[:, None])[:, 0].mT.reshape(h.shape)


@block()
def causal_products(_m: Any, h: Tensor) -> Tensor:
    tokens = h.flatten(2).mT
    count = tokens.shape[1]
    mask = torch.full((count, count), float("-inf"), device=h.device, dtype=h.dtype).triu(1)
    return ((tokens @ tokens.mT / math.sqrt(h.shape[1]) + mask).softmax(-1) @ tokens).mT.reshape(h.shape)


@block()
def linear_attention(_m: Any, h: Tensor) -> Tensor:
    q, k, v = h.flatten(2).softmax(1), h.flatten(2).softmax(-1), h.flatten(2)
    return torch.einsum("bde,bdn->ben", torch.einsum("bdn,ben->bde", k, v), q).view(h.shape)


@block()
def coordinates(_m: Any, h: Tensor) -> Tensor:
    down, across = torch.linspace(-1, 1, h.shape[2]).to(h), torch.linspace(-1, 1, h.shape[3]).to(h)
    grid = torch.stack(torch.meshgrid(down, across, indexing="ij")).expand(h.shape[0], -1, -1, -1)
    return torch.cat([h, grid, grid.pow(2).sum(1, keepdim=True).sqrt()], 1)


@block()
def borders_and_order(_m: Any, h: Tensor) -> Tensor:
    x = F.pad(F.pad(h, [1, 2, 2, 1], mode="circular"), [1, 0, 0, 2], mode="reflect")
    return F.max_pool2d(x.flip(2) + x.cumsum(2) / 9, 3, 2, ceil_mode=True).repeat_interleave(2, 2).tile(1, 1, 1, 2)


@block(keys=lambda: nn.Linear(CHANNELS, CHANNELS))
def learned_queries(m: Any, h: Tensor) -> Tensor:
    tokens, few = h.flatten(2).mT, m.keys.weight[None, :5].expand(h.shape[0], -1, -1)
    seen = F.scaled_dot_product_attention(few, m.keys(tokens), tokens)
    return h + F.scaled_dot_product_attention(tokens, seen, seen).mT.reshape(h.shape)


@block()
def mean_for_every_token(_m: Any, h: Tensor) -> Tensor:
    tokens = h.flatten(2).mT
    mean = tokens.mean(1)[:, None].expand(-1, tokens.shape[1], -1)
    return (tokens * mean + mean.sigmoid()).mT.reshape(h.shape)


@block(table=lambda: nn.Conv2d(CHANNELS, CHANNELS, 5))
def resized_table(m: Any, h: Tensor) -> Tensor:
    table = F.adaptive_avg_pool2d(m.table.weight, h.shape[2:])
    return h + table[0] + F.interpolate(m.table.weight[:1], h.shape[2:], mode="area")


@block()
def writes_in_place(_m: Any, h: Tensor) -> Tensor:
    y = torch.zeros_like(h)
    y[:, :, 1:] = h[:, :, :-1]
    y[:, ::2].mul_(2)
    y.view(h.shape[0], 2, -1, *h.shape[2:])[:, 1].add_(1)
    return y.masked_fill_(h > 1, 0.0)


@block(drop=lambda: nn.Sequential(nn.Dropout2d(0.5), nn.AlphaDropout(0.5), nn.FeatureAlphaDropout(0.5)))
def several_results(m: Any, h: Tensor) -> dict[str, Any]:
    mean, logvar = m.drop(h).chunk(2, 1)
    return {
        "posterior": Pair(mean, [logvar.clamp(-30, 20)]),
        "distribution": torch.distributions.Normal(mean, 1.0).mean,
    }


@block(whole=True)
def spectrum(_m: Any, h: Tensor) -> Tensor:
    return torch.fft.irfft2(torch.fft.rfft2(h, norm="ortho"), s=h.shape[2:], norm="ortho")


@block()
def sampled(_m: Any, h: Tensor) -> Tensor:
    down, across = torch.linspace(-1, 1, h.shape[2]).to(h), torch.linspace(-1, 1, h.shape[3]).to(h)
    x, y = torch.meshgrid(across, down, indexing="xy")
    return F.grid_sample(h, torch.stack([x, y], -1).mul(0.9).expand(h.shape[0], -1, -1, -1), align_corners=True)
