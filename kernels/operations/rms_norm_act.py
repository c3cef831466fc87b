"""RMS normalisation of each pixel, weights and SiLU in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.kernels.activation import activate
from tvae.kernels.operation import LIMITED, Operation
from tvae.kernels.oracle import Case, Maps, Oracle, activated, bytes_of

__all__ = ["OPERATION", "case", "rms_norm_act"]


def rms_norm_act(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    form: str,
    act: str | None,
    offset: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """act(x / size·weight + bias) of x_nc*, the size being that of each pixel's channels; weight and bias are [C].

    form ``normalize``: size = max(‖x‖, eps)/sqrt(C) (Wan's); form ``rms``: size = sqrt(mean(x²) + eps). Computed in at
    least float32. offset: a constant per channel that is added to x first (a convolution's bias that was left out).
    out: of x's shape and type, takes the result; it shares no memory with x.
    """
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    shape = (1, -1, *[1] * (x.ndim - 2))
    wide = wide if offset is None else wide + offset.view(shape).to(wide.dtype)
    size = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
    if form == "normalize":
        factor = x.shape[1] ** 0.5 / size.clamp_min_(eps)
    elif form == "rms":
        factor = (size.square_() / x.shape[1] + eps).rsqrt_()
    else:
        raise ValueError(f"rms_norm_act has the forms 'normalize' and 'rms', not '{form}'")
    y = wide * factor if wide is x else wide.mul_(factor)
    if weight is not None:
        y.mul_(weight.view(shape).to(y.dtype))
    if bias is not None:
        y.add_(bias.view(shape).to(y.dtype))
    y = activate(y.to(x.dtype), act)
    return y if out is None else out.copy_(y)


def case(
    make: Oracle,
    label: str,
    x: Tensor,
    *,
    form: str = "normalize",
    weights: bool = True,
    act: str | None = "silu",
    offset: bool = False,
    into: bool = False,
) -> Case:
    c = x.shape[1]
    before = make.vector(c, 0.5) if offset else None
    moved = x.double() if before is None else x.double() + before.double().view(1, -1, *[1] * (x.ndim - 2))
    weight, bias = (make.vector(c, 1), make.vector(c, 0)) if weights else (None, None)
    eps = 1e-12 if form == "normalize" else 1e-6
    squares = moved.square().sum(1, keepdim=True)
    size = squares.sqrt().clamp_min(eps) / c**0.5 if form == "normalize" else (squares / c + eps).sqrt()
    y, shape = moved / size, (1, -1, *[1] * (x.ndim - 2))
    y = y if weight is None or bias is None else y * weight.double().view(shape) + bias.double().view(shape)
    given = (x, weight, bias, eps, form, act, before, torch.empty_like(x) if into else None)
    place = 7 if into else None
    return make.case(label, given, expected=activated(y, act), moved=2 * bytes_of(x), out=place)


def _measured(make: Oracle, size: int, channels: int) -> Case:
    return case(make, "measured", make.picture(1, channels, size, size))


def _small(make: Oracle, maps: Maps) -> list[Case]:
    return [
        *(case(make, label, x) for label, x in maps.each()),
        case(make, "form rms", maps.picture, form="rms"),
        case(make, "no weights", maps.picture, weights=False),
        case(make, "an offset", maps.batch, offset=True),
        case(make, "no activation", maps.picture, act=None),
        case(make, "into given memory", maps.picture, into=True),
    ]


OPERATION = Operation(rms_norm_act, _measured, _small, left_out={"cuda": LIMITED})
