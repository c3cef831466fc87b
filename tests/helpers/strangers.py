"""Small autoencoders in the ways of research repositories: each encodes pictures, and decodes what it has encoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

__all__ = ["STRANGERS", "Stranger"]

STRANGERS: dict[str, type[Stranger]] = {}


class Stranger(nn.Module):
    """A model by its two sides. scale: pixels of a latent."""

    scale = 4

    def __init_subclass__(cls) -> None:
        STRANGERS[cls.__name__] = cls

    def encode(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def decode(self, z: Tensor) -> Tensor:
        raise NotImplementedError


class Residual(nn.Module):
    """What is added to its own input."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.parts(x)


class Of(nn.Module):
    """A function without weights."""

    def __init__(self, fn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x)


def conv(inner: int, outer: int, k: int = 3, **more: Any) -> nn.Conv2d:
    return nn.Conv2d(inner, outer, k, padding=more.pop("padding", k // 2), **more)


class Coordinates(nn.Module):
    """Coordinate attention (Hou et al. 2021)."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.mix, self.norm, self.down, self.across = conv(c, 4, 1), nn.BatchNorm2d(4), conv(4, c, 1), conv(4, c, 1)

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = F.adaptive_avg_pool2d(x, (None, 1)), F.adaptive_avg_pool2d(x, (1, None)).permute(0, 1, 3, 2)
        y = F.hardswish(self.norm(self.mix(torch.cat([rows, columns], 2))))
        down, across = torch.split(y, [x.shape[2], x.shape[3]], 2)
        return x * self.down(down).sigmoid() * self.across(across.permute(0, 1, 3, 2)).sigmoid()


class CoordinateUNet(Stranger):
    """Coordinate attention between blocks with groups of odd sizes."""

    def __init__(self) -> None:
        super().__init__()
        block = lambda: Residual(nn.GroupNorm(3, 9), nn.SiLU(), conv(9, 9), Coordinates(9))  # noqa: E731
        self.down = nn.Sequential(conv(3, 9), block(), conv(9, 9, stride=2), block(), conv(9, 9, stride=2), block())
        up = [nn.UpsamplingNearest2d(scale_factor=2), conv(9, 9), block()]
        self.up = nn.Sequential(block(), *up, nn.Upsample(scale_factor=2, mode="bilinear"), conv(9, 3))

    def encode(self, x: Tensor) -> Tensor:
        return self.down(x)

    def decode(self, z: Tensor) -> Tensor:
        return self.up(z)


class Grn(nn.Module):
    """A ConvNeXt V2 block: depthwise 7x7, layer norm, global response norm, and squeeze-and-excitation."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.depth, self.norm = conv(c, c, 7, groups=c), nn.LayerNorm(c)
        self.wide, self.narrow = nn.Linear(c, 2 * c), nn.Linear(2 * c, c)
        self.gain, self.gate = nn.Parameter(torch.randn(2 * c)), nn.Linear(c, c)

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.wide(self.norm(self.depth(x).permute(0, 2, 3, 1))))
        spread = torch.linalg.norm(y, dim=(1, 2), keepdim=True)
        y = self.narrow(y + self.gain * (y * spread.divide(spread.mean(-1, keepdim=True).clip(min=1e-6))))
        return x + y.movedim(-1, 1) * self.gate(y.mean((1, 2)))[..., None, None].sigmoid()


class ConvNeXt(Stranger):
    """Pixel unshuffle, ConvNeXt V2 blocks, pixel shuffle, finite scalar quantisation."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.body, self.outer = conv(48, 12, 1), nn.Sequential(Grn(12), Grn(12)), conv(12, 5, 1)
        self.back, self.body2, self.last = conv(5, 12), nn.Sequential(Grn(12), Grn(12)), conv(12, 48, 1)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        levels = torch.tensor([8, 6, 5, 5, 5], device=x.device)
        half = (levels - 1).to(x.dtype)[:, None, None] * 1.001 / 2
        shift = torch.where(levels % 2 == 0, 0.5, 0.0).to(x.dtype)[:, None, None]
        z = self.outer(self.body(self.inner(F.pixel_unshuffle(x, 4))))
        return torch.tanh(z + (shift / half).atan()) * half - shift, half.amax() * z

    def decode(self, z: Tensor) -> Tensor:
        return F.pixel_shuffle(self.last(self.body2(self.back(z))), 4)


class Tokens(nn.Module):
    """Attention over tokens, with class tokens and registers that are taken off again."""

    def __init__(self, c: int, few: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out, self.few = nn.LayerNorm(c), nn.Linear(c, 3 * c), nn.Linear(c, c), few
        self.own, self.behind = nn.Parameter(torch.randn(1, few, c)), nn.Parameter(torch.randn(1, 4, c))

    def forward(self, t: Tensor) -> Tensor:
        b, n, c = t.shape
        every = torch.cat([self.own.expand(b, -1, -1), t, self.behind.expand(b, -1, -1)], 1)
        qkv = self.qkv(self.norm(every)).reshape(b, -1, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*qkv.unbind(0)).transpose(1, 2).flatten(2)
        every = every + self.out(seen)
        own, t, _ = torch.split(every, [self.few, n, 4], 1)
        return t * own.mean(1, keepdim=True).sigmoid()


class VitVqgan(Stranger):
    """Patches, a table of positions that is resized, class tokens, a codebook by cosine similarity."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.place = nn.Conv2d(3, 12, 4, 4), nn.Parameter(torch.randn(1, 1 + 7 * 7, 12))
        self.body, self.to_code = nn.Sequential(Tokens(12, 1), Tokens(12, 2)), nn.Linear(12, 4)
        self.table, self.from_code, self.tail = nn.Embedding(32, 4), nn.Linear(4, 12), Tokens(12, 1)
        self.pixels = nn.Linear(12, 48)

    def places(self, height: int, width: int) -> Tensor:
        table = self.place[:, 1:].reshape(1, 7, 7, -1).permute(0, 3, 1, 2)
        table = F.interpolate(table, size=(height, width), mode="bicubic", align_corners=False)
        return table.flatten(2).transpose(1, 2) + self.place[:, :1]

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.patch(x)
        t = self.to_code(self.body(h.flatten(2).mT + self.places(*h.shape[2:])))
        near = F.normalize(t, dim=-1) @ F.normalize(self.table.weight, dim=-1).T
        return t.mT.reshape(len(x), 4, *h.shape[2:]), near.amax(-1).view(len(x), *h.shape[2:])

    def decode(self, z: Tensor) -> Tensor:
        t = self.tail(self.from_code(z.flatten(2).mT) + self.places(*z.shape[2:]))
        y = self.pixels(t).view(len(z), *z.shape[2:], 3, 4, 4)
        return torch.einsum("bhwcpq->bchpwq", y).reshape(len(z), 3, z.shape[2] * 4, z.shape[3] * 4)


class Axial(nn.Module):
    """Attention along rows, and along columns, with a convolution along the columns."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.along = nn.GroupNorm(2, c), nn.Linear(c, 3 * c), nn.Conv1d(c, c, 3, padding=1)

    def attend(self, x: Tensor) -> Tensor:
        n, a, b, c = x.shape
        q, k, v = self.qkv(x.reshape(n * a, b, c)).chunk(3, -1)
        return (((q @ k.mT) * c**-0.5).softmax(-1) @ v).view(n, a, b, c)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        y = self.norm(x).movedim(1, -1)
        y = self.attend(y) + self.attend(y.swapdims(1, 2)).swapdims(1, 2)
        z = self.along(x.permute(0, 3, 1, 2).reshape(n * w, c, h)).view(n, w, c, h).permute(0, 2, 3, 1)
        return x + y.movedim(-1, 1) + z + self.along(x.flatten(2)).view_as(x)


class AxialVqgan(Stranger):
    """Axial attention, strided convolutions after uneven padding, the nearest of a table of codes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.halves, self.quarter = conv(3, 8), conv(8, 8, padding=0, stride=2), conv(8, 8, 4, stride=2)
        self.mid, self.table, self.back = nn.Sequential(Axial(8), Axial(8)), nn.Embedding(16, 8), Axial(8)
        self.up = nn.Sequential(nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.ELU(), nn.ConvTranspose2d(8, 3, 3, 2, 1, 1))

    def encode(self, x: Tensor) -> Tensor:
        h = self.halves(F.pad(F.leaky_relu(self.first(x), 0.2), (0, 1, 0, 1)))
        h = F.conv2d(h, self.quarter.weight, self.quarter.bias, 2, 1)
        return self.mid(h)

    def decode(self, z: Tensor) -> Tensor:
        flat = z.movedim(1, -1).flatten(0, 2)
        far = flat.square().sum(1, keepdim=True) + self.table.weight.square().sum(1) - 2 * flat @ self.table.weight.T
        codes = self.table(far.argmin(1)).view(len(z), *z.shape[2:], -1).movedim(-1, 1)
        return self.up(self.back(z + (codes - z).detach() * 0.5)).clip(-1, 1)


class LookupFree(Stranger):
    """Weights by norm and spectrum, signs as codes (LFQ), unit vectors (BSQ), antialiased pools, mirrored borders."""

    def __init__(self) -> None:
        super().__init__()
        self.first = parametrizations.weight_norm(conv(3, 8, padding_mode="reflect"))
        self.second = parametrizations.spectral_norm(conv(8, 8, 5, padding_mode="replicate"))
        self.third, self.fourth = conv(8, 8, padding_mode="circular"), conv(8, 8, 4, padding="same")
        self.register_buffer("blur", torch.tensor([1.0, 3.0, 3.0, 1.0]).outer(torch.tensor([1.0, 3.0, 3.0, 1.0])) / 64)
        self.last = parametrizations.weight_norm(conv(8, 3))

    def halved(self, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, (1, 2, 1, 2), mode="reflect"), self.blur.expand(8, 1, 4, 4), stride=2, groups=8)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.halved(F.mish(self.first(x)))
        h = self.fourth(F.softsign(self.third(self.halved(self.second(h)))))
        unit = F.normalize(h, dim=1)
        return unit, torch.where(unit.greater(0), 1.0, -1.0).mul(0.35) * unit.aminmax(dim=1, keepdim=True)[1]

    def decode(self, z: Tensor) -> Tensor:
        h = F.interpolate(self.third(z), scale_factor=2, mode="bicubic")
        return self.last(F.interpolate(self.second(h), scale_factor=2, mode="nearest-exact")).multiply(0.5)
