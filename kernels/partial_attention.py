"""Attention over chunks of the keys: each gives a partial result and the log-sum-exp of its scores; two merge into one.

For keys and values that are never all on the device at once. Legend: q_btmd are M queries of each of T frames, k_btnd
and v_btne the N keys and values of a chunk, out_btme the result, lse_btm the log-sum-exp; out and lse are float32, or
float64 where the operands are.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["PartialAttention", "merge", "partial_attention", "partial_bytes", "traffic_bytes"]

PartialAttention = tuple[Tensor, Tensor]
"""(out_btme, lse_btm)."""

_SCORES = {"cpu": 1 << 22}
"""Products of a query and a key that exist at once, by kind of device: as many as keep a matrix product busy."""
_SCORES_ELSEWHERE = 1 << 24


def partial_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> PartialAttention:
    """softmax(q·kᵀ·scale)·v over the keys of this chunk. ``causal``: of a query's own frame and those before it."""
    b, t, m, _ = q.shape
    kind = torch.promote_types(q.dtype, torch.float32)
    out = q.new_empty((b, t, m, v.shape[-1]), dtype=kind)
    lse = q.new_empty((b, t, m), dtype=kind)
    # without an order of frames they are one
    groups = [(slice(i, i + 1), i + 1) for i in range(t)] if causal else [(slice(0, t), t)]
    for own, seen in groups:
        keys, values = (_operand(x[:, :seen].flatten(1, 2)) for x in (k, v))
        rows = max(1, _limit(q) // max(1, b * keys.shape[1]))
        queries = q[:, own].flatten(1, 2)
        for lo in range(0, queries.shape[1], rows):
            hi = min(lo + rows, queries.shape[1])
            scores = _product(_operand(queries[:, lo:hi]), keys.mT, kind).mul_(scale)
            top = scores.amax(2, keepdim=True)
            weights = scores.sub_(top).exp_()
            total = weights.sum(2, keepdim=True)
            result = _product(weights.to(values.dtype), values, kind).div_(total)
            at = lo + own.start * m
            out.flatten(1, 2)[:, at : at + hi - lo] = result
            lse.flatten(1, 2)[:, at : at + hi - lo] = total.log_().add_(top).squeeze(2)
            del scores, weights  # freed before those of the next block are made
    return out, lse


def merge(one: PartialAttention, other: PartialAttention) -> PartialAttention:
    """The result over the keys of both. Writes over ``one``."""
    (out, lse), (more, its) = one, other
    both = torch.logaddexp(lse, its)
    out.mul_((lse - both).exp_().unsqueeze(-1))
    out.addcmul_(more, (its - both).exp_().unsqueeze(-1))
    return out, lse.copy_(both)


def partial_bytes(device: torch.device, dtype: torch.dtype, heads: int, queries: int, keys: int, depth: int) -> int:
    """Most that ``partial_attention`` and ``merge`` take beside the operands; queries, keys: of all frames, a head."""
    wide = torch.promote_types(dtype, torch.float32).itemsize
    limit = _SCORES.get(device.type, _SCORES_ELSEWHERE)
    block = max(1, min(queries, limit // max(1, heads * keys)))
    scores = heads * block * keys
    copies = 0
    if dtype.itemsize < wide:
        copies = scores * dtype.itemsize if device.type == "cuda" else heads * (block + 2 * keys) * depth * wide
    return scores * wide + copies + heads * block * depth * wide + 2 * heads * queries * (depth + 1) * wide


def traffic_bytes(dtype: torch.dtype, heads: int, queries: int, keys: int) -> int:
    """What ``partial_attention`` reads and writes of scores and weights: nine passes, and one as narrow weights."""
    wide = torch.promote_types(dtype, torch.float32).itemsize
    return heads * queries * keys * (9 * wide + (2 * dtype.itemsize if dtype.itemsize < wide else 0))


def _limit(q: Tensor) -> int:
    return _SCORES.get(q.device.type, _SCORES_ELSEWHERE)


def _operand(x: Tensor) -> Tensor:
    """As it is multiplied: a GPU takes narrow factors and sums in float32, elsewhere they are widened first."""
    return x if x.device.type == "cuda" or x.dtype == torch.float64 else x.float()


def _product(a: Tensor, b: Tensor, kind: torch.dtype) -> Tensor:
    return torch.bmm(a, b) if a.dtype == kind else torch.bmm(a, b, out_dtype=kind)
