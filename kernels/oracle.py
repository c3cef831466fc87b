"""Calls of operations together with what they must give, in float64: what the files of ``operations`` make them with.

No code here is shared with any level, ``native`` included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["HALF", "TOLERANCE", "Case", "Maps", "Oracle", "activated", "bytes_of", "convolved_3x3", "scaled"]

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Of values, relative L2: half the spacing of the type is what two roundings cost; float32 also pays for its sums."""

_STATISTICS = 2e-5
"""Of means (against the deviation) and variances, for all types but float64: what float32 sums of blocks give."""

_WORST = 8
"""The worst value may be this many tolerances away, measured against its own size plus the root mean square."""

HALF = {torch.uint8: 127.5, torch.uint16: 32767.5}
"""Half of the largest level of a pixel."""


@dataclass(frozen=True)
class Case:
    """One call of an operation, and what it must give.

    expected: values in float64, or None. pixels: the picture in float64 whose statistics the call must give, or None;
    with no ``expected``, they are all that it gives. out: index of the argument that takes the result; ``aliased``:
    index of the one that it is, too. moved: bytes that must be read and written at least. flops: of an operation that
    is bound by matrix products, else 0.
    """

    label: str
    arguments: tuple[Any, ...]
    expected: Tensor | None
    pixels: Tensor | None
    tolerance: float
    worst_tolerance: float
    statistics_tolerance: float
    moved: int
    flops: int = 0
    out: int | None = None
    aliased: int | None = None

    def fresh(self) -> tuple[Any, ...]:
        """Arguments for one more call: nothing of an earlier result is left in ``out``."""
        given = list(self.arguments)
        if self.out is not None:
            if self.aliased is not None:
                given[self.aliased] = given[self.out] = given[self.aliased].clone()
            else:
                given[self.out].fill_(torch.nan)
        return tuple(given)


@dataclass(frozen=True)
class Maps:
    """Small maps x_nc* of every kind that a level may meet. band: rows of a taller map."""

    picture: Tensor
    batch: Tensor
    clip: Tensor
    band: Tensor

    def each(self) -> list[tuple[str, Tensor]]:
        """All, with a label; also one with planes instead of channels innermost."""
        named = {"picture": self.picture, "batch": self.batch, "clip": self.clip, "band": self.band}
        return [*named.items(), ("NCHW", self.picture.contiguous())]


class Oracle:
    """Makes inputs of one type on one device, and calls of them."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self.random = torch.Generator(device).manual_seed(11)
        self.statistics = 1e-11 if dtype == torch.float64 else _STATISTICS

    def noise(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random, device=self.device)

    def uniform(self, *shape: int, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=self.random, device=self.device)

    def picture(self, n: int, c: int, *spatial: int, far: float = 2) -> Tensor:
        """x_nc*, channels innermost: noise and a slope, of another size and mean (``far`` deviations) per channel."""
        shape = (n, c, *[1] * len(spatial))
        slope = torch.linspace(-1, 1, spatial[-2], device=self.device).view(-1, 1)
        x = (self.noise(n, c, *spatial) + slope + far * self.noise(*shape)) * (self.noise(*shape).abs() + 0.2)
        layout = torch.channels_last if len(spatial) == 2 else torch.channels_last_3d
        return x.to(self.dtype).contiguous(memory_format=layout)

    def maps(self) -> Maps:
        picture, batch, clip = self.picture(1, 64, 40, 24), self.picture(2, 32, 17, 9), self.picture(1, 32, 3, 12, 10)
        return Maps(picture, batch, clip, self.picture(2, 32, 40, 24)[:, :, 3:20])

    def vector(self, c: int, around: float) -> Tensor:
        return (around + 0.3 * self.noise(c)).to(self.dtype)

    def affine(self, n: int, c: int) -> Tensor:
        """affine_2nc, in float32 at least."""
        made = torch.stack([1 + 0.3 * self.noise(n, c), self.noise(n, c)])
        return made.double() if self.dtype == torch.float64 else made

    def taps(self, out: int, inner: int) -> Tensor:
        """A 3x3 kernel as runs in this layout have it: channels innermost."""
        taps = self.noise(out, inner, 3, 3) / (3 * inner**0.5)
        return taps.to(self.dtype).contiguous(memory_format=torch.channels_last)

    def case(self, label: str, arguments: tuple[Any, ...], **more: Any) -> Case:
        """``more`` are fields of the case; ``moved`` has no default, the tolerance is that of the type."""
        filled: dict[str, Any] = {"tolerance": TOLERANCE[self.dtype], "expected": None, "pixels": None, **more}
        filled.setdefault("worst_tolerance", _WORST * filled["tolerance"])
        return Case(label, arguments, statistics_tolerance=self.statistics, **filled)


def activated(y: Tensor, act: str | None) -> Tensor:
    return y if act is None else y / (1 + torch.exp(-y))


def scaled(x: Tensor, affine: Tensor, act: str | None) -> Tensor:
    """act(x·scale + shift) in float64."""
    scale, shift = (t.view(*x.shape[:2], *[1] * (x.ndim - 2)) for t in affine.double())
    return activated(x.double() * scale + shift, act)


def convolved_3x3(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """With zeros around, a tap at a time in float64; x is in float64."""
    n, _, h, w = x.shape
    big = x.new_zeros((n, x.shape[1], h + 2, w + 2))
    big[:, :, 1:-1, 1:-1] = x
    y = x.new_zeros((n, weight.shape[0], h, w))
    y = y if bias is None else y + bias.double().view(1, -1, 1, 1)
    for i in range(3):
        for j in range(3):
            y += torch.einsum("nihw,oi->nohw", big[:, :, i : i + h, j : j + w], weight[:, :, i, j].double())
    return y


def bytes_of(*tensors: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
