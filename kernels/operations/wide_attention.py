"""Attention of one wide head, also frame-causal."""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.kernels import functional
from tvae.kernels.operation import LIMITED, SAME_CALL, Operation
from tvae.kernels.oracle import TOLERANCE, Case, Maps, Oracle, bytes_of
from tvae.kernels.token_rows import in_rows

__all__ = ["OPERATION", "case", "wide_attention"]


def wide_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False) -> Tensor:
    """softmax(q·kᵀ·scale)·v of one head. q [B, T, M, D], k and v [B, T, N, D] -> [B, T, M, D].

    Every frame's queries see the keys of all T frames; ``causal``: of their own frame and those before it.
    """
    b, t, m, d = q.shape
    q, k, v = (in_rows(x) for x in (q, k, v))
    if not causal:
        keys, values = k.reshape(b, 1, -1, d), v.reshape(b, 1, -1, d)
        return functional.scaled_dot_product_attention(q.reshape(b, 1, -1, d), keys, values, scale=scale).view(
            b, t, m, d
        )
    out = torch.empty_like(q)
    for i in range(t):
        keys, values = k[:, : i + 1].reshape(b, 1, -1, d), v[:, : i + 1].reshape(b, 1, -1, d)
        out[:, i] = functional.scaled_dot_product_attention(q[:, i : i + 1], keys, values, scale=scale)[:, 0]
    return out


def case(make: Oracle, label: str, b: int, t: int, m: int, n: int, d: int, *, causal: bool = False) -> Case:
    q, k, v = (make.noise(b, t, rows, d).to(make.dtype) for rows in (m, n, n))
    scale = 2 / d**0.5
    y = torch.empty((b, t, m, d), dtype=torch.float64, device=make.device)
    for i in range(t):
        seen = i + 1 if causal else t
        keys, values = (a[:, :seen].reshape(b, -1, d).double() for a in (k, v))
        for start in range(0, m, 1024):
            queries = q[:, i, start : start + 1024].double()
            y[:, i, start : start + 1024] = (queries @ keys.mT * scale).softmax(-1) @ values
    pairs = b * m * n * (t * (t + 1) // 2 if causal else t * t)
    return make.case(
        label,
        (q, k, v, scale, causal),
        expected=y,
        tolerance=2 * TOLERANCE[make.dtype],  # the weights of the values are rounded too
        moved=bytes_of(q, k, v, q),
        flops=4 * pairs * d,
    )


def _measured(make: Oracle, size: int, channels: int) -> Case:
    """The tokens of an eighth of the size, in one head of four times the channels."""
    tokens = max(2, size // 8) ** 2
    return case(make, "measured", 1, 1, tokens, tokens, 4 * channels)


def _small(make: Oracle, _maps: Maps) -> list[Case]:
    return [
        case(make, "one frame", 1, 1, 100, 100, 512),
        case(make, "a band of queries", 1, 1, 40, 130, 512),
        case(make, "frames", 2, 3, 48, 48, 384),
        case(make, "causal", 1, 3, 50, 50, 384, causal=True),
    ]


OPERATION = Operation(
    wide_attention, _measured, _small, left_out={"script": SAME_CALL, "compile": SAME_CALL, "cuda": LIMITED}
)
