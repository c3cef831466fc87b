"""Linear layers of pixels or tokens, and convolutions of single pixels with channels innermost."""

from __future__ import annotations

from torch import Tensor

from tvae.kernels import functional
from tvae.kernels.operation import SAME_CALL, Operation
from tvae.kernels.oracle import Case, Maps, Oracle, bytes_of

__all__ = ["OPERATION", "case", "linear"]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x·weightᵀ + bias of the last dimension. x [..., I], weight [O, I], bias [O] -> [..., O]."""
    if bias is None or x.ndim < 3 or x.is_contiguous():
        return functional.linear(x, weight, bias)
    # of what does not lie in a row, such as some rows of two pictures, PyTorch rounds the product before the bias
    return functional.linear(x.flatten(0, -2), weight, bias).unflatten(0, x.shape[:-1])


def case(make: Oracle, label: str, shape: tuple[int, ...], outer: int, *, bias: bool = True, apart: int = 0) -> Case:
    """apart: values between one row of x and the next."""
    inner = shape[-1]
    x = make.noise(*shape[:-1], inner + apart).to(make.dtype)[..., :inner]
    weight = (make.noise(outer, inner) / inner**0.5).to(make.dtype)
    added = make.vector(outer, 0.5) if bias else None
    y = (x.double().unsqueeze(-2) * weight.double()).sum(-1) if x.numel() * outer < 1 << 24 else _large(x, weight)
    y = y if added is None else y + added.double()
    moved = bytes_of(x, weight) + y.numel() * x.element_size()
    return make.case(label, (x, weight, added), expected=y, moved=moved)


def _large(x: Tensor, weight: Tensor) -> Tensor:
    """The same by a library's product in float64: what is timed has no room for all factors at once."""
    return x.double() @ weight.double().T


def _measured(make: Oracle, size: int, channels: int) -> Case:
    return case(make, "measured", (size * size, channels), channels)


def _small(make: Oracle, _maps: Maps) -> list[Case]:
    return [
        case(make, "tokens", (2, 70, 64), 64),
        case(make, "single pixels", (300, 8), 8),
        case(make, "odd", (131, 33), 5, bias=False),
        case(make, "wider", (1, 3, 50, 48), 200),
        case(make, "a part of wider rows", (140, 64), 32, apart=16),
    ]


OPERATION = Operation(linear, _measured, _small, left_out=dict.fromkeys(("script", "compile", "cuda"), SAME_CALL))
