"""Repeated channels laid out as pixels, and a sum with them: how residual upsampling passes its input on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from tvae.kernels.layout import channels_last
from tvae.kernels.operation import A_COPY, LIMITED, Operation
from tvae.kernels.oracle import Case, Maps, Oracle, bytes_of

__all__ = ["OPERATION", "Part", "case", "leading", "shuffle_up"]

Part = tuple[int, int, int]
"""(dimension, first, last): pixels [first, last) along one spatial dimension, the first of which is 0."""


def shuffle_up(
    x: Tensor, factors: Sequence[int], channels: int, other: Tensor | None, part: Part | None = None
) -> Tensor:
    """Pixel shuffle of x_nc* with every channel repeated, plus ``other``.

    x: [N, K, *spatial]. Of the result, [N, channels, *(spatial * factors)], pixel p of channel c is channel
    (c * P + s) // times of x's pixel p // factors, where P is the product of the factors, s the place of p among the P
    pixels that become of one, and ``times`` = channels * P / K. So it is ``x.repeat_interleave(times, 1)`` shuffled as
    ``torch.pixel_shuffle`` does, in any number of dimensions. part: what of the result is wanted. other: of the shape
    of what is given. In x's layout.
    """
    if part is not None:
        dim, first, last = part
        y = shuffle_up(x, factors, channels, None).narrow(2 + dim, first, last - first)
        return y if other is None else y.add_(other)
    places, spatial = math.prod(factors), x.shape[2:]
    if len(factors) != len(spatial) or channels * places % x.shape[1]:
        raise ValueError(f"{list(x.shape)} does not become {channels} channels, enlarged by {list(factors)}")
    times = channels * places // x.shape[1]
    lead = leading(factors, times)
    if lead is None:
        parts = x.repeat_interleave(times, 1).unflatten(1, (channels, *factors))
    else:  # without a copy: the last factors repeat what is there
        ones = [1] * (len(factors) - lead)
        parts = x.unflatten(1, (channels, *factors[:lead], *ones)).expand(-1, channels, *factors, *spatial)
    count = len(factors)
    pairs = [*chain(*zip(range(2 + count, 2 + 2 * count), range(2, 2 + count), strict=True))]
    size = [n * factor for n, factor in zip(spatial, factors, strict=True)]
    shape = x.shape[0], channels, *size
    inside = x.stride(1) == 1 and x.shape[1] > 1
    y = x.new_empty_strided(shape, channels_last(shape)) if inside else x.new_empty(shape)
    pixels = parts.permute(0, 1, *pairs)
    if other is None:
        _split(y, spatial, factors).copy_(pixels)
    else:
        torch.add(_split(other, spatial, factors), pixels, out=_split(y, spatial, factors))
    return y


def leading(factors: Sequence[int], times: int) -> int | None:
    """How many factors at the front tell channels of x apart, where those after them only repeat; None: the definition
    writes the repeated channels down."""
    return next((n for n in range(len(factors) + 1) if math.prod(factors[n:]) == times), None)


def _split(t: Tensor, spatial: Sequence[int], factors: Sequence[int]) -> Tensor:
    """Every spatial dimension as (where in x, which of the pixels that become of one)."""
    for i, both in enumerate(zip(spatial, factors, strict=True)):
        t = t.unflatten(2 + 2 * i, both)
    return t


def case(
    make: Oracle,
    label: str,
    x: Tensor,
    factors: Sequence[int],
    channels: int,
    *,
    summed: bool = True,
    part: Part | None = None,
) -> Case:
    size = [n * factor for n, factor in zip(x.shape[2:], factors, strict=True)]
    places, y = math.prod(factors), x.new_zeros((x.shape[0], channels, *size), dtype=torch.float64)
    for place in range(places):  # the definition, a place at a time
        at, steps = place, list[slice]()
        for factor in reversed(factors):
            steps.insert(0, slice(at % factor, None, factor))
            at //= factor
        of = [(c * places + place) * x.shape[1] // (channels * places) for c in range(channels)]
        y[:, :, *steps] = x.double()[:, of]
    if part is not None:
        y = y.narrow(2 + part[0], part[1], part[2] - part[1])
    other = make.noise(*y.shape).to(x.dtype).movedim(1, -1).contiguous().movedim(-1, 1) if summed else None
    moved = bytes_of(x) + (1 if other is None else 2) * y.numel() * x.element_size()
    expected = y if other is None else y + other.double()
    return make.case(label, (x, list(factors), channels, other, part), expected=expected, moved=moved)


def _measured(make: Oracle, size: int, channels: int) -> Case:
    """To a picture of the size with half the channels, from half of it."""
    half = max(1, size // 2)
    return case(make, "measured", make.picture(1, channels, half, half), (2, 2), max(1, channels // 2))


def _small(make: Oracle, maps: Maps) -> list[Case]:
    found = []
    for label, x in maps.each():
        factors, held = (2,) * (x.ndim - 2), x.shape[1]
        found += [
            case(make, f"{label}, as many channels", x, factors, held),
            case(make, f"{label}, alone", x, factors, held, summed=False),
        ]
        if held % 2 == 0:
            part = 0, 1, 2 * x.shape[2] - 1
            found.append(case(make, f"{label}, half as many", x, factors, held // 2))
            found.append(case(make, f"{label}, half as many, a part", x, factors, held // 2, part=part))
    clip = maps.clip
    return [
        *found,
        case(make, "some rows of a clip", clip, (1, 2, 2), clip.shape[1], part=(1, 1, 2 * clip.shape[3])),
        case(make, "columns", clip, (1, 2, 3), clip.shape[1], part=(2, 2, 3 * clip.shape[4] - 1), summed=False),
        case(make, "in time alone", clip, (2, 1, 1), clip.shape[1]),
        case(make, "unlike factors", clip, (1, 2, 3), clip.shape[1]),
        case(make, "more channels", clip, (1, 2, 2), 2 * clip.shape[1]),
    ]


OPERATION = Operation(shuffle_up, _measured, _small, left_out={"script": A_COPY, "compile": A_COPY, "cuda": LIMITED})
