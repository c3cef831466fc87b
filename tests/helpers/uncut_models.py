"""VAEs of a few operations whose height may become a constant: coordinates, tables, recurrence, loops over rows."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["CUT", "UNCUT", "Uncut"]


class Uncut(nn.Module):
    """Two convolutions with something between them; both sides are the same."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.joined = nn.Conv2d(10, 8, 3, padding=1)
        self.norm = nn.GroupNorm(4, 8)
        self.last = nn.Conv2d(8, 3, 3, padding=1)

    def between(self, h: Tensor) -> Tensor:
        raise NotImplementedError

    def encode(self, x: Tensor) -> tuple[Tensor]:
        return (self.last(self.between(self.first(x))),)

    def decode(self, z: Tensor) -> tuple[Tensor]:
        return self.encode(z)


# -- what stays a matter of rows ---------------------------------------------------------------------------------------
class Spaced(Uncut):
    """CoordConv: -1 to 1 along both axes."""

    def between(self, h: Tensor) -> Tensor:
        n, _, height, width = h.shape
        down = torch.linspace(-1, 1, height, device=h.device, dtype=h.dtype).view(1, 1, height, 1)
        across = torch.linspace(-1, 1, steps=width, device=h.device, dtype=h.dtype)
        return F.silu(self.joined(torch.cat([h, down.expand(n, 1, -1, width), across.expand(n, 1, height, -1)], 1)))


class Meshed(Uncut):
    """The same by way of ``meshgrid``, behind a norm and at half the height."""

    def between(self, h: Tensor) -> Tensor:
        h = F.avg_pool2d(self.norm(h), 2)
        sides = [torch.linspace(0.5, 2.0, n, dtype=h.dtype) for n in h.shape[-2:]]
        grid = torch.stack(torch.meshgrid(*sides, indexing="ij"))
        joined = self.joined(torch.cat([h, grid[None].expand(h.shape[0], -1, -1, -1)], 1))
        return F.interpolate(joined, scale_factor=2.0)


class Counted(Uncut):
    """Rows and columns counted, and repeated."""

    def between(self, h: Tensor) -> Tensor:
        n, _, height, width = h.shape
        down = (torch.arange(height, dtype=h.dtype) / (height - 1)).view(1, 1, height, 1).repeat(n, 1, 1, width)
        across = (torch.arange(width, dtype=h.dtype) / (width - 1)).repeat(n, 1, height, 1)
        gains = torch.linspace(0.5, 1.5, 8, dtype=h.dtype).view(1, 8, 1).repeat(n, 1, height * width)
        return self.joined(torch.cat([(h.flatten(2) * gains).view_as(h), down, across], 1))


class Tabled(Uncut):
    """Learned positions, as many as there are rows and columns; and one for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 8, 700, 700))
        self.line = nn.Parameter(torch.randn(1, 8, 1 << 19))

    def between(self, h: Tensor) -> Tensor:
        n, c, height, width = h.shape
        h = h + self.table[:, :, 1 : height + 1, :width]
        return (h.flatten(2) * self.line[:, :, : height * width]).view(n, c, height, width)


class Numbered(Uncut):
    """The height as a divisor, and wide values around it."""

    def between(self, h: Tensor) -> Tensor:
        h = F.silu(h) / h.shape[2]
        h = self.norm(torch.cat([h, h], 1)[:, 4:12])
        return F.max_pool2d(h, 3, 1, 1).softmax(1)


class Pooled(Uncut):
    """A few numbers of the whole picture, spread over it again."""

    def between(self, h: Tensor) -> Tensor:
        return h + F.interpolate(F.adaptive_avg_pool2d(h, 4), size=h.shape[-2:])


# -- what does not -----------------------------------------------------------------------------------------------------
class Looped(Uncut):
    """One row after the other."""

    def between(self, h: Tensor) -> Tensor:
        state, rows = torch.zeros_like(h[:, :, 0]), []
        for n in range(h.shape[2]):
            state = torch.tanh(h[:, :, n] + 0.5 * state)
            rows.append(state)
        return torch.stack(rows, 2)


class Recurrent(Uncut):
    """A GRU over the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 8, batch_first=True)

    def between(self, h: Tensor) -> Tensor:
        n, c, height, width = h.shape
        out = self.gru(h.permute(0, 3, 2, 1).reshape(n * width, height, c))[0]
        return out.reshape(n, width, height, c).permute(0, 3, 2, 1)


class Number(Uncut):
    """The same, by a function that takes numbers of Python's alone."""

    def between(self, h: Tensor) -> Tensor:
        h = F.silu(h) * (1 / math.isqrt(h.shape[2] ** 2))
        h = self.norm(torch.cat([h, h], 1)[:, 4:12])
        return F.max_pool2d(h, 3, 1, 1).softmax(1)


class Sampled(Uncut):
    """A picture sampled where another one says."""

    def between(self, h: Tensor) -> Tensor:
        where = self.last(h)[:, :2].tanh().permute(0, 2, 3, 1)
        return F.silu(self.norm(F.grid_sample(h, where, align_corners=False))) + h


class Grid(Uncut):
    """The same where the grid is made of the shape."""

    def between(self, h: Tensor) -> Tensor:
        turn = torch.tensor([[[0.9, 0.1, 0.0], [-0.1, 0.9, 0.0]]], dtype=h.dtype).expand(h.shape[0], -1, -1)
        return F.grid_sample(h, F.affine_grid(turn, list(h.shape), align_corners=False), align_corners=False)


class Sorted(Uncut):
    """An operation that gives two values, one of which is twice as wide."""

    def between(self, h: Tensor) -> Tensor:
        values, places = h.sort(2)
        return values * places


class Transposed(Uncut):
    """A transposed convolution among whole values."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(8, 8, 4, 2, 1)

    def between(self, h: Tensor) -> Tensor:
        return self.norm(self.up(torch.renorm(h, 2, 1, 3.0)).transpose(2, 3).contiguous().transpose(2, 3))


CUT: dict[str, type[Uncut]] = {
    k.__name__: k for k in (Spaced, Meshed, Counted, Tabled, Numbered, Pooled, Sampled, Grid)
}
UNCUT: dict[str, tuple[type[Uncut], str, str]] = {
    "Looped": (Looped, "for n in range(h.shape[2]):", ""),
    "Recurrent": (Recurrent, "aten.gru.input", "gru"),
    "Number": (Number, "h = F.silu(h) * (1 / math.isqrt(h.shape[2] ** 2))", ""),
    "Sorted": (Sorted, "aten.sort.default", ""),
    "Transposed": (Transposed, "aten.renorm.default", ""),
}
"""The model, the operation (or line) that has to be named, and its module."""
