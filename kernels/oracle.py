"""The float64 oracle: calls of every operation together with what they must give.

Each formula is stated once more, plainly; no code is shared with any level, ``native`` included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Case", "Oracle"]

_TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Of values, relative L2: half the spacing of the type is what two roundings cost; float32 also pays for its sums."""

_STATISTICS = 2e-5
"""Of means (against the deviation) and variances, for all types but float64: what float32 sums of blocks give."""

_WORST = 8
"""The worst value may be this many tolerances away, measured against its own size plus the root mean square."""

_HALF = {torch.uint8: 127.5, torch.uint16: 32767.5}
"""Half of the largest level."""


@dataclass(frozen=True)
class Case:
    """One call of an operation, and what it must give.

    expected: values in float64, or None. pixels: the picture in float64 whose statistics the call must give, or None.
    out: index of the argument that takes the result; ``aliased``: index of the one that it is, too. moved: bytes that
    must be read and written at least. flops: of an operation that is bound by matrix products, else 0.
    """

    operation: str
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


class Oracle:
    """Makes calls: inputs of one type on one device, with what each operation must give for them."""

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

    def vector(self, c: int, around: float) -> Tensor:
        return (around + 0.3 * self.noise(c)).to(self.dtype)

    def case(self, operation: str, label: str, arguments: tuple[Any, ...], **more: Any) -> Case:
        filled: dict[str, Any] = {"tolerance": _TOLERANCE[self.dtype], "expected": None, "pixels": None, **more}
        filled.setdefault("worst_tolerance", _WORST * filled["tolerance"])
        return Case(operation, label, arguments, statistics_tolerance=self.statistics, **filled)

    def group(self, label: str, x: Tensor) -> Case:
        return self.case("group_stats", label, (x,), pixels=x.double(), moved=_bytes(x))

    def finish(
        self, label: str, n: int, c: int, blocks: int, *, weights: bool = True, offset: bool = True, groups: int = 8
    ) -> Case:
        sizes = [1 + 5 * i % 11 for i in range(blocks)]  # so that blocks count by their pixels
        x = 3 * self.noise(n, c, sum(sizes)).double() + 2 * self.noise(n, c, 1).double()
        parts = []
        for block in x.split(sizes, 2):
            mean = block.mean(2)
            count = torch.full_like(mean, block.shape[2])
            parts.append(torch.stack([count, mean, (block - mean.unsqueeze(2)).square().sum(2)], 1))
        weight, bias = (self.vector(c, 1), self.vector(c, 0)) if weights else (None, None)
        shift = self.vector(c, 0.5) if offset else None
        moved = x if shift is None else x + shift.double().view(1, -1, 1)
        by_group = moved.reshape(n, groups, -1)
        scale = 1 / (by_group.var(2, correction=0) + 1e-6).sqrt()
        scale, mean = (t.repeat_interleave(c // groups, 1) for t in (scale, by_group.mean(2)))
        scale = scale if weight is None else scale * weight.double()
        at_zero = -mean if shift is None else shift.double() - mean
        affine = torch.stack([scale, at_zero * scale + (0 if bias is None else bias.double())])
        wide = self.dtype == torch.float64 and (weights or offset)
        given = (torch.stack(parts, 1), groups, 1e-6, weight, bias, shift)
        tolerance = _TOLERANCE[torch.float64 if wide else torch.float32]
        return self.case(
            "finish_stats", label, given, expected=affine, tolerance=tolerance, moved=_bytes(given[0], affine)
        )

    def norm(self, label: str, x: Tensor, act: str | None = "silu") -> Case:
        n, c = x.shape[:2]
        kind = torch.float64 if x.dtype == torch.float64 else torch.float32
        affine = torch.stack([1 + 0.3 * self.noise(n, c), self.noise(n, c)]).to(kind)
        scale, shift = (t.view(n, c, *[1] * (x.ndim - 2)) for t in affine.double())
        y = _activated(x.double() * scale + shift, act)
        return self.case("norm_act", label, (x, affine, act), expected=y, moved=2 * _bytes(x))

    def add(
        self,
        label: str,
        x: Tensor,
        *,
        residual: bool = True,
        bias: bool = True,
        stats: bool = True,
        into: bool = False,
        aliased: bool = False,
    ) -> Case:
        other = torch.empty_like(x).copy_(self.noise(*x.shape)) if residual else None
        vector = self.vector(x.shape[1], 0.5) if bias else None
        y = x.double() if other is None else x.double() + other.double()
        y = y if vector is None else y + vector.double().view(1, -1, *[1] * (x.ndim - 2))
        out = None if not into else x if aliased else torch.empty_like(x)
        moved = (3 if residual else 2) * _bytes(x)
        return self.case(
            "add_stats",
            label,
            (x, other, vector, out, stats),
            expected=y,
            pixels=y if stats else None,
            moved=moved,
            out=3 if into else None,
            aliased=0 if aliased else None,
        )

    def rms(
        self,
        label: str,
        x: Tensor,
        *,
        form: str = "normalize",
        weights: bool = True,
        act: str | None = "silu",
        offset: bool = False,
    ) -> Case:
        c = x.shape[1]
        before = self.vector(c, 0.5) if offset else None
        moved = x.double() if before is None else x.double() + before.double().view(1, -1, *[1] * (x.ndim - 2))
        weight, bias = (self.vector(c, 1), self.vector(c, 0)) if weights else (None, None)
        eps = 1e-12 if form == "normalize" else 1e-6
        squares = moved.square().sum(1, keepdim=True)
        size = squares.sqrt().clamp_min(eps) / c**0.5 if form == "normalize" else (squares / c + eps).sqrt()
        y, shape = moved / size, (1, -1, *[1] * (x.ndim - 2))
        y = y if weight is None or bias is None else y * weight.double().view(shape) + bias.double().view(shape)
        given = (x, weight, bias, eps, form, act, before)
        return self.case("rms_norm_act", label, given, expected=_activated(y, act), moved=2 * _bytes(x))

    def padded(self, label: str, x: Tensor, amounts: Sequence[int], mode: str, act: str | None = "-") -> Case:
        """act: None and "silu" for a norm on the way, "-" for none."""
        n, c = x.shape[:2]
        y, affine = x.double(), None
        if act != "-":
            affine = torch.stack([1 + 0.3 * self.noise(n, c), self.noise(n, c)])
            affine = affine.double() if x.dtype == torch.float64 else affine
            scale, shift = (t.view(n, c, *[1] * (x.ndim - 2)) for t in affine.double())
            y = _activated(y * scale + shift, act)
        for i in range(len(amounts) // 2):
            dim, before, after = x.ndim - 1 - i, amounts[2 * i], amounts[2 * i + 1]
            size = y.shape[dim]
            at = torch.arange(-before, size + after, device=self.device)
            if mode == "reflect":
                at = (size - 1) - ((size - 1) - at.abs()).abs()
            kept = y.index_select(dim, at.clamp(0, size - 1))
            outside = ((at < 0) | (at >= size)).view(-1, *[1] * i)
            y = kept.masked_fill(outside, 0.0) if mode == "constant" else kept
        moved = _bytes(x) + y.numel() * x.element_size()
        given = (x, list(amounts), mode, affine, None if act == "-" else act)
        return self.case("pad", label, given, expected=y, moved=moved)

    def enlarged(self, label: str, x: Tensor, factors: Sequence[int]) -> Case:
        y = x.double()
        for i, factor in enumerate(factors):
            y = y.repeat_interleave(factor, 2 + i)
        moved = _bytes(x) + y.numel() * x.element_size()
        return self.case("enlarge", label, (x, list(factors)), expected=y, moved=moved)

    def conv3d(
        self, label: str, n: int, inner: int, c: int, t: int, h: int, w: int, *, bias: bool = False, step: int = 1
    ) -> Case:
        x, vector = self.picture(n, inner, t, h, w), self.vector(c, 0.5) if bias else None
        taps = self.noise(c, inner, 3, 3, 3) / (27 * inner) ** 0.5
        weight = taps.to(self.dtype).contiguous(memory_format=torch.channels_last_3d)
        frames = x.double().unbind(2)
        y = torch.stack([self._of_frames(frames[at : at + 3], weight, vector) for at in range(0, t - 2, step)], 2)
        given = (x, weight, vector, [step, 1, 1], [0, 1, 1], [1, 1, 1], 1)
        moved = _bytes(x, weight) + y.numel() * x.element_size()
        flops = 2 * y[:, 0].numel() * weight.numel()
        return self.case("conv3d", label, given, expected=y, moved=moved, flops=flops)

    def conv_add(
        self,
        label: str,
        n: int,
        inner: int,
        c: int,
        h: int,
        w: int,
        *,
        residual: bool = True,
        bias: bool = True,
        pads: tuple[int, int, int, int] = (1, 1, 1, 1),
        stats: bool = True,
        into: bool = False,
        aliased: bool = False,
    ) -> Case:
        x, weight, vector = self.picture(n, inner, h, w), self._taps(c, inner), self.vector(c, 0.5) if bias else None
        y = self._convolved(x.double(), weight, vector)
        y = y[:, :, 1 - pads[2] : y.shape[2] - 1 + pads[3]]  # rows whose neighbours are no zeros
        place = self.picture(n, c, *y.shape[2:])
        y = y + place.double() if residual else y
        added = place if residual else None
        out = (place if aliased else torch.empty_like(place)) if into else None
        return self.case(
            "conv_add",
            label,
            (x, weight, added, vector, pads, out, stats),
            expected=y,
            pixels=y if stats else None,
            moved=_bytes(x, weight, place, *([place] if residual else [])),
            flops=2 * y[0, 0].numel() * n * weight.numel(),
            out=5 if into else None,
            aliased=2 if aliased and residual else None,
        )

    def enlarging(
        self,
        label: str,
        n: int,
        inner: int,
        c: int,
        h: int,
        w: int,
        *,
        bias: bool = True,
        pads: tuple[int, int, int, int] = (1, 1, 1, 1),
        stats: bool = True,
        into: bool = False,
    ) -> Case:
        x, vector = self.picture(n, inner, h, w), self.vector(c, 0.5) if bias else None
        taps = (self.noise(c, inner, 4, 4) / (2 * inner**0.5)).to(self.dtype)
        taps = taps.contiguous(memory_format=torch.channels_last)
        big, y = x.new_zeros((n, inner, h + 2, w + 2)).double(), x.new_zeros((n, c, 2 * h, 2 * w)).double()
        big[:, :, 1:-1, 1:-1] = x
        for at in range(16):  # of four places in a square of pixels, each sees 2x2 pixels of x
            p, q, i, j = (at >> bit & 1 for bit in range(4))
            seen, weight = big[:, :, p + i : p + i + h, q + j : q + j + w], taps[:, :, 3 - p - 2 * i, 3 - q - 2 * j]
            y[:, :, p::2, q::2] += torch.einsum("nihw,oi->nohw", seen, weight.double())
        y = y if vector is None else y + vector.double().view(1, -1, 1, 1)
        left, right, top, bottom = (2 - 2 * pad for pad in pads)
        y = y[:, :, top : 2 * h - bottom, left : 2 * w - right]
        out = self.picture(n, c, *y.shape[2:]) if into else None
        return self.case(
            "enlarge_conv",
            label,
            (x, taps, vector, pads, out, stats),
            expected=y,
            pixels=y if stats else None,
            moved=_bytes(x, taps) + y.numel() * x.element_size(),
            flops=2 * y.numel() * 4 * inner,
            out=4 if into else None,
        )

    def from_few(
        self, label: str, n: int, few: int, c: int, h: int, w: int, *, stats: bool = True, into: bool = False
    ) -> Case:
        x, weight, bias = self.picture(n, few, h, w), self._taps(c, few), self.vector(c, 0.5)
        y = self._convolved(x.double(), weight, bias)
        out = self.picture(n, c, h, w) if into else None
        given = (x, weight, bias, (1, 1, 1, 1), out, stats)
        moved = _bytes(x) + y.numel() * x.element_size()
        pixels = y if stats else None
        return self.case("conv_from_few", label, given, expected=y, pixels=pixels, moved=moved, out=4 if into else None)

    def to_few(
        self, label: str, n: int, c: int, few: int, h: int, w: int, *, norm: bool = True, act: str | None = "silu"
    ) -> Case:
        x, weight, bias, affine = self.picture(n, c, h, w), self._taps(few, c), self.vector(few, 0.5), None
        y = x.double()
        if norm:
            affine = torch.stack([1 + 0.3 * self.noise(n, c), self.noise(n, c)])
            affine = affine.double() if x.dtype == torch.float64 else affine
            scale, shift = (t.view(n, c, 1, 1) for t in affine.double())
            y = _activated(y * scale + shift, act)
        y = self._convolved(y, weight, bias)
        given = (x, weight, bias, (1, 1, 1, 1), affine, act if norm else None)
        moved = _bytes(x) + y.numel() * x.element_size()
        tolerance = 2 * _TOLERANCE[self.dtype]  # what is normalised is rounded before the products too
        return self.case("conv_to_few", label, given, expected=y, tolerance=tolerance, moved=moved)

    def _taps(self, out: int, inner: int) -> Tensor:
        """As runs in this layout have them: channels innermost."""
        taps = self.noise(out, inner, 3, 3) / (3 * inner**0.5)
        return taps.to(self.dtype).contiguous(memory_format=torch.channels_last)

    def _of_frames(self, frames: Sequence[Tensor], weight: Tensor, bias: Tensor | None) -> Tensor:
        """One frame of a clip's convolution, from as many as the kernel has taps."""
        taps = [self._convolved(x, w, None) for x, w in zip(frames, weight.unbind(2), strict=True)]
        y = torch.stack(taps).sum(0)
        return y if bias is None else y + bias.double().view(1, -1, 1, 1)

    @staticmethod
    def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """3x3 with zeros around, a tap at a time in float64."""
        n, _, h, w = x.shape
        big = x.new_zeros((n, x.shape[1], h + 2, w + 2))
        big[:, :, 1:-1, 1:-1] = x
        y = x.new_zeros((n, weight.shape[0], h, w))
        y = y if bias is None else y + bias.double().view(1, -1, 1, 1)
        for i in range(3):
            for j in range(3):
                y += torch.einsum("nihw,oi->nohw", big[:, :, i : i + h, j : j + w], weight[:, :, i, j].double())
        return y

    def attention(self, label: str, b: int, t: int, m: int, n: int, d: int, *, causal: bool = False) -> Case:
        q, k, v = (self.noise(b, t, rows, d).to(self.dtype) for rows in (m, n, n))
        scale = 2 / d**0.5
        y = torch.empty((b, t, m, d), dtype=torch.float64, device=self.device)
        for i in range(t):
            seen = i + 1 if causal else t
            keys, values = (a[:, :seen].reshape(b, -1, d).double() for a in (k, v))
            for start in range(0, m, 1024):
                queries = q[:, i, start : start + 1024].double()
                y[:, i, start : start + 1024] = (queries @ keys.mT * scale).softmax(-1) @ values
        pairs = b * m * n * (t * (t + 1) // 2 if causal else t * t)
        return self.case(
            "wide_attention",
            label,
            (q, k, v, scale, causal),
            expected=y,
            tolerance=2 * _TOLERANCE[self.dtype],  # the weights of the values are rounded too
            moved=_bytes(q, k, v, q),
            flops=4 * pairs * d,
        )

    def sample(self, label: str, *shape: int) -> Case:
        mean, std, noise = (self.noise(*shape).to(self.dtype) for _ in range(3))
        y = mean.double() + std.double() * noise.double()
        return self.case("sample", label, (mean, std, noise), expected=y, moved=4 * _bytes(mean))

    def to_tensor(self, label: str, frames: int, height: int, width: int, levels: torch.dtype) -> Case:
        """Of frames_to_tensor, exact but for the rounding to the type of the computation."""
        half = _HALF[levels]
        given = (self.uniform(frames, height, width, 3, low=0, high=2 * half).round_().to(levels), self.dtype)
        y = (given[0].double() / half - 1).permute(0, 3, 1, 2)
        moved = _bytes(given[0]) + y.numel() * self.dtype.itemsize
        tolerance = _TOLERANCE[torch.float32 if self.dtype == torch.float64 else self.dtype]  # computed in float32
        return self.case("frames_to_tensor", label, given, expected=y, tolerance=tolerance, moved=moved)

    def to_frames(self, label: str, frames: int, height: int, width: int, levels: torch.dtype) -> Case:
        """Of tensor_to_frames. Measured against the levels before rounding: it may take half a level, not more."""
        half = _HALF[levels]
        x = self.uniform(frames, 3, height, width, low=-1.1, high=1.1).to(self.dtype)
        x = x.contiguous(memory_format=torch.channels_last)
        y = ((x.double() + 1) * half).clamp_(0, 2 * half).permute(0, 2, 3, 1)
        return self.case(
            "tensor_to_frames",
            label,
            (x, levels),
            expected=y,
            tolerance=0.3 / half,  # rounding is 0.25 of it, cutting off 0.5
            worst_tolerance=0.55 / half,
            moved=_bytes(x) + y.numel() * levels.itemsize,
        )


def _activated(y: Tensor, act: str | None) -> Tensor:
    return y if act is None else y / (1 + torch.exp(-y))


def _bytes(*tensors: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
