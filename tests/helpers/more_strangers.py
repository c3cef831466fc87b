"""More small autoencoders in the ways of research repositories: windows, fronts by frequency, warps, clips."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from strangers import Of, Residual, Stranger, conv
from torch import Tensor, nn


class Windows(nn.Module):
    """Attention in windows of four, shifted, with a table of biases (Swin)."""

    def __init__(self, c: int, shift: int) -> None:
        super().__init__()
        self.qkv, self.out, self.shift = nn.Linear(c, 3 * c), nn.Linear(c, c), shift
        self.bias = nn.Parameter(torch.randn(49))
        at = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        apart = at[:, :, None] - at[:, None] + 3
        self.register_buffer("places", apart[0] * 7 + apart[1])

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        t = F.pad(x, (0, -w % 4, 0, -h % 4)).movedim(1, -1)
        t = torch.roll(t, (-self.shift, -self.shift), (1, 2)) if self.shift else t
        high, wide = t.shape[1:3]
        t = t.view(n, high // 4, 4, wide // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        q, k, v = self.qkv(t).chunk(3, -1)
        t = self.out((q @ k.mT / math.sqrt(c) + self.bias[self.places]).softmax(-1) @ v)
        t = t.view(n, high // 4, wide // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(n, high, wide, c)
        t = torch.roll(t, (self.shift, self.shift), (1, 2)) if self.shift else t
        return x + t[:, :h, :w].movedim(-1, 1)


class Swin(Stranger):
    """Windows and shifted windows; patches are merged by slices."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.a, self.b = conv(3, 8, 2, stride=2, padding=0), Windows(8, 0), Windows(8, 2)
        self.fewer, self.c, self.d = nn.Linear(32, 8, bias=False), Windows(8, 0), Windows(8, 2)
        self.last = nn.Sequential(conv(8, 48), nn.PixelShuffle(4))

    def encode(self, x: Tensor) -> Tensor:
        h = self.b(self.a(self.patch(x)))
        parts = [h[:, :, i::2, j::2] for i in range(2) for j in range(2)]
        return self.fewer(torch.cat(parts, 1).movedim(1, -1)).movedim(-1, 1)

    def decode(self, z: Tensor) -> Tensor:
        return self.last(self.d(self.c(z)))


class Haar(Stranger):
    """Two Haar transforms in front, RMS norms over channels, and their inverses at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.body, self.tail = nn.Parameter(torch.randn(48, 1, 1)), conv(48, 8), conv(8, 48)

    def apart(self, x: Tensor) -> Tensor:
        a, b, c, d = (x[..., i::2, j::2] for i in range(2) for j in range(2))
        return torch.hstack([a + b + c + d, a - b + c - d, a + b - c - d, a - b - c + d]) / 2

    def together(self, x: Tensor) -> Tensor:
        a, b, c, d = x.chunk(4, 1)
        y = torch.stack([a + b + c + d, a - b + c - d, a + b - c - d, a - b - c + d], -1) / 2
        n, c_, h, w, _ = y.shape
        return y.view(n, c_, h, w, 2, 2).permute(0, 1, 2, 4, 3, 5).reshape(n, c_, 2 * h, 2 * w)

    def normed(self, x: Tensor) -> Tensor:
        return (
            F.normalize(x, dim=1) * x.shape[1] ** 0.5 * self.gain + x.square().mean(1, keepdim=True).add(1e-6).rsqrt()
        )

    def encode(self, x: Tensor) -> Tensor:
        return self.body(F.silu(self.normed(self.apart(self.apart(x)))))

    def decode(self, z: Tensor) -> Tensor:
        return self.together(self.together(self.normed(self.tail(z))))


class Cosines(Stranger):
    """Blocks of cosines (JPEG) in front and back, gates by medians, norms over all of a picture."""

    def __init__(self) -> None:
        super().__init__()
        k = torch.arange(4.0)
        basis = ((2 * k + 1) * k[:, None] * math.pi / 8).cos() * torch.where(k == 0, 0.5, math.sqrt(0.5))[:, None]
        self.register_buffer("basis", basis)
        self.body, self.tail = conv(48, 8, 1), conv(8, 48, 1)

    def encode(self, x: Tensor) -> Tensor:
        blocks = x.unflatten(2, (-1, 4)).unflatten(4, (-1, 4))
        found = torch.einsum("ka,nchawb,lb->ncklhw", self.basis, blocks, self.basis)
        h = self.body(found.flatten(1, 3))
        around = F.pad(h, (1, 1, 1, 1), mode="reflect").unfold(2, 3, 1).unfold(3, 3, 1).flatten(-2)
        return F.layer_norm(h, h.shape[1:]) + around.median(-1)[0] - around.kthvalue(2, -1).values

    def decode(self, z: Tensor) -> Tensor:
        found = self.tail(F.rms_norm(z, z.shape[1:])).unflatten(1, (3, 4, 4))
        return torch.einsum("ka,ncklhw,lb->nchawb", self.basis, found, self.basis).flatten(4, 5).flatten(2, 3)


class Warped(Stranger):
    """Pictures sampled where offsets say (a deformable convolution of one tap), and turned by a predicted matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.where, self.turn = conv(3, 8, 4, stride=4, padding=0), conv(8, 2), nn.Linear(8, 6)
        self.body, self.up = conv(8, 8), nn.ConvTranspose2d(8, 3, 4, 4)

    def warped(self, h: Tensor) -> Tensor:
        n, _, height, width = h.shape
        at = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
        grid = torch.stack(at[::-1], -1).to(h).expand(n, -1, -1, -1)
        grid = grid + self.where(h).tanh().movedim(1, -1) / 8
        return F.grid_sample(h, grid, mode="bilinear", padding_mode="border", align_corners=True)

    def encode(self, x: Tensor) -> Tensor:
        return self.body(self.warped(self.down(x)))

    def decode(self, z: Tensor) -> Tensor:
        near = torch.eye(2, 3, dtype=z.dtype, device=z.device)
        turn = near + self.turn(z.mean((2, 3))).view(-1, 2, 3) / 16
        return self.up(F.grid_sample(z, F.affine_grid(turn, list(z.shape), align_corners=False), align_corners=False))


class Causal(nn.Conv3d):
    """Sees earlier frames alone."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(torch.cat([x[:, :, :1].expand(-1, -1, 2, -1, -1), x], 2), (1, 1, 1, 1)))


class Clip(Stranger):
    """Causal convolutions of clips, of which a picture is one frame; attention over frames; halves in time."""

    clip = True

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.qkv = Causal(3, 8, 3), nn.GroupNorm(4, 8), nn.Linear(8, 24)
        self.halves = nn.Conv3d(8, 4, (1, 4, 4), (1, 4, 4))
        self.back, self.up = Causal(4, 8, 3), nn.ConvTranspose3d(8, 3, (1, 4, 4), (1, 4, 4))

    def frames(self, x: Tensor) -> Tensor:
        n, c, t, h, w = x.shape
        y = x.permute(0, 3, 4, 2, 1).reshape(n * h * w, t, c)
        q, k, v = self.qkv(y).chunk(3, -1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + y.view(n, h, w, t, c).permute(0, 4, 3, 1, 2)

    def encode(self, x: Tensor) -> Tensor:
        return self.halves(self.frames(F.silu(self.norm(self.first(x)))))

    def decode(self, z: Tensor) -> Tensor:
        h = self.back(z)
        kept: Any = None
        for frame in h.unbind(2):
            kept = frame if kept is None else kept * 0.5 + frame
        return self.up(h + kept[:, :, None])


class Pyramid(Stranger):
    """Pools to fixed sizes (PPM), strip pools, efficient channel attention, largest and smallest of all."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(conv(3, 8, stride=2), nn.PReLU(8), conv(8, 8, stride=2), nn.InstanceNorm2d(8))
        self.few, self.eca, self.up = conv(8, 2, 1), nn.Conv1d(1, 1, 3, padding=1), conv(14, 48)

    def encode(self, x: Tensor) -> Tensor:
        h = self.down(x)
        low, high = torch.aminmax(h)
        gate = self.eca(h.mean((2, 3))[:, None]).sigmoid().mT[..., None]
        return (h - low) / (high - low) * gate + h.mean(2, keepdim=True) + h.amax(3, keepdim=True)

    def decode(self, z: Tensor) -> Tensor:
        pools = [F.interpolate(self.few(F.adaptive_avg_pool2d(z, n)), z.shape[2:], mode="bilinear") for n in (1, 2, 3)]
        y = F.pixel_shuffle(self.up(torch.cat([z, *pools], 1)), 4)
        edges = F.pad(y.diff(dim=2), (0, 0, 0, 1)) + F.pad(torch.diff(y, dim=3), (0, 1))
        return y + edges.where(y.any(1, keepdim=True), 0.0)


class Linear(nn.Module):
    """Linear attention with rotary positions, and a gated depthwise feed-forward (as in DC-AE, LiteMLA)."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.qkv, self.out = conv(c, 3 * c, 1, bias=False), conv(c, c, 1)
        self.wide, self.depth, self.narrow = conv(c, 4 * c, 1), conv(4 * c, 4 * c, groups=4 * c), conv(2 * c, c, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).flatten(2).chunk(3, 1)
        v = F.pad(v, (0, 0, 0, 1), value=1.0)
        y = (v @ k.relu().mT) @ q.relu()
        y = y[:, :-1].divide(y[:, -1:].add(1e-6)).view_as(x)
        a, b = self.depth(self.wide(x + self.out(y))).chunk(2, 1)
        return x + self.narrow(F.silu(a).mul_(b))


class LinearAttention(Stranger):
    """Linear attention, shortcuts by unshuffled channels, writes in place, powers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.body, self.back = conv(3, 8), nn.Sequential(Linear(8), Linear(8)), nn.Sequential(Linear(8))
        self.fewer, self.more = conv(8, 8, stride=4), conv(8, 48, 1)

    def encode(self, x: Tensor) -> Tensor:
        h = self.first(x)
        short = F.pixel_unshuffle(h, 4).unflatten(1, (8, 16)).mean(2)
        h = self.body(self.fewer(h) + short)
        h **= 2
        h[:, :4] += 1
        return h.clip_(max=9.0).div_(3)

    def decode(self, z: Tensor) -> Tensor:
        y = self.more(self.back(z)) + z.repeat_interleave(6, 1)
        return F.pixel_shuffle(y, 4) + F.pixel_shuffle(z.tile(1, 6, 1, 1), 4).cumsum(1) * 0.1


class Mixer(Stranger):
    """Skips between scales, dilated and grouped convolutions, channel shuffles, lookups by bounds and one-hot codes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.wide, self.grouped = conv(3, 8), conv(8, 8, dilation=2, padding=2), conv(8, 8, 5, groups=4)
        self.halves, self.quarter = nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, ceil_mode=True)
        self.table, self.body = (
            nn.Embedding(8, 8),
            Residual(Of(lambda h: F.channel_shuffle(h, 4)), conv(8, 8), nn.GELU()),
        )
        self.up, self.last = nn.Upsample(scale_factor=4, mode="bilinear", align_corners=True), conv(16, 3)
        self.register_buffer("bounds", torch.linspace(-1, 1, 7))

    def encode(self, x: Tensor) -> Tensor:
        h = self.grouped(F.celu(self.wide(self.first(x))))
        h = self.body(self.quarter(self.halves(h)))
        return torch.where(h.isnan(), 0.0, h)

    def decode(self, z: Tensor) -> Tensor:
        codes = self.table(torch.bucketize(z.mean(1), self.bounds.to(z.dtype))).movedim(-1, 1)
        hot = F.one_hot(z.argmax(1), 8).movedim(-1, 1).to(z) * z.topk(2, 1)[0].sum(1, keepdim=True)
        return self.last(self.up(torch.dstack([torch.cat([codes + hot, z], 1)])))


class Dynamic(Stranger):
    """Kernels that the picture itself chooses (CondConv), attention over the neighbourhood of every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.kernels = conv(3, 8, 4, stride=4, padding=0), nn.Parameter(torch.randn(4, 576))
        self.which, self.qkv, self.up = nn.Linear(8, 4), conv(8, 24, 1), conv(8, 48, 1)

    def encode(self, x: Tensor) -> Tensor:
        h = self.first(x)
        n, c, height, width = h.shape
        chosen = (self.which(h.mean((2, 3))).softmax(-1) @ self.kernels / 9).view(n * 8, 8, 3, 3)
        return F.conv2d(h.reshape(1, n * c, height, width), chosen, padding=1, groups=n).view(n, 8, height, width)

    def decode(self, z: Tensor) -> Tensor:
        q, k, v = self.qkv(z).chunk(3, 1)
        n, c, height, width = z.shape
        keys, values = (F.unfold(t, 3, padding=1).view(n, c, 9, height, width) for t in (k, v))
        seen = ((q[:, :, None] * keys).sum(1, keepdim=True).softmax(2) * values).sum(2)
        return F.pixel_shuffle(self.up(z + seen), 4)


class Pyramids(Stranger):
    """A Laplacian pyramid, norms that the latents modulate (SPADE), statistics of one map put onto another (AdaIN)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.shift, self.scale_ = conv(6, 8), conv(8, 8), conv(8, 8)
        self.norm, self.first, self.last = nn.InstanceNorm2d(8), nn.ConvTranspose2d(8, 8, 2, 2), conv(8, 3)

    def encode(self, x: Tensor) -> Tensor:
        low = F.avg_pool2d(x, 2)
        high = F.pixel_unshuffle(x - F.interpolate(low, x.shape[2:], mode="bicubic"), 2).unflatten(1, (3, 4)).amax(2)
        h = F.avg_pool2d(self.body(torch.hstack([low, high])), 2)
        own, other = torch.std_mean(h, (2, 3), keepdim=True), torch.std_mean(low, (1, 2, 3), keepdim=True)
        return (h - own[1]) / (own[0] + 1e-5) * other[0] + other[1]

    def decode(self, z: Tensor) -> Tensor:
        h = self.first(z)
        wide = F.interpolate(z, h.shape[2:])
        h = F.interpolate(self.norm(h) * (1 + self.scale_(wide)) + self.shift(wide), scale_factor=2, mode="bilinear")
        return self.last(F.leaky_relu(h, 0.2)).tanh()
