"""Attention by parts of its keys against all of them at once in float64."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise

import pytest
import torch
from live_bytes import LiveBytes
from torch import Tensor

from tvae.kernels import partial_attention as module
from tvae.kernels.partial_attention import merge, partial_attention, partial_bytes

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ROUNDED = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-10}


def operands(dtype: torch.dtype, t: int, m: int, n: int, depth: int = 24, width: int = 24) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(m + n)
    shapes = ((2, t, m, depth), (2, t, n, depth), (2, t, n, width))
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64).mul(2).to(dtype) for s in shapes)


def whole(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Result and log-sum-exp in float64, frame by frame."""
    q, k, v = (x.double() for x in (q, k, v))
    outs, sums = [], []
    for i in range(q.shape[1]):
        seen = i + 1 if causal else q.shape[1]
        keys, values = k[:, :seen].flatten(1, 2), v[:, :seen].flatten(1, 2)
        scores = q[:, i] @ keys.mT * scale
        outs.append(scores.softmax(-1) @ values)
        sums.append(scores.logsumexp(-1))
    return torch.stack(outs, 1), torch.stack(sums, 1)


def distance(value: Tensor, reference: Tensor) -> float:
    return float((value.double() - reference).norm() / reference.norm())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("cuts", [(0, 40), (0, 1, 40), (0, 13, 14, 33, 40)], ids=len)
def test_chunks_give_what_all_keys_give(
    dtype: torch.dtype, causal: bool, cuts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever order they are merged, and with few scores at a time."""
    q, k, v = operands(dtype, 3, 17, 40, width=16)
    out, lse = whole(q, k, v, 0.4, causal)
    for limit in (1 << 22, 50):
        monkeypatch.setitem(module._SCORES, "cpu", limit)
        pairs = [*pairwise(cuts)]
        for order in (pairs, pairs[::-1]):
            found = reduce(merge, (partial_attention(q, k[:, :, a:b], v[:, :, a:b], 0.4, causal) for a, b in order))
            assert found[0].dtype == found[1].dtype == torch.promote_types(dtype, torch.float32)
            assert distance(found[0], out) < ROUNDED[dtype]
            assert distance(found[1], lse) < max(ROUNDED[dtype] / 4, 1e-13)


def test_scores_that_would_overflow() -> None:
    """The largest of a part is taken off, and parts differ by more than exp can say."""
    q, k, v = operands(torch.float32, 1, 9, 30)
    k[:, :, 10:20] *= 60
    k[:, :, 20:] -= 80 * q.mean()
    out, _ = whole(q, k, v, 1.0, False)
    parts = (partial_attention(q, k[:, :, a : a + 10], v[:, :, a : a + 10], 1.0, False) for a in (0, 10, 20))
    got = reduce(merge, parts)[0]
    assert got.isfinite().all()
    assert distance(got, out) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("limit", [1 << 22, 1 << 14])
def test_it_takes_the_memory_that_was_said(dtype: torch.dtype, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``limit`` it is linear in the queries and in the keys."""
    monkeypatch.setitem(module._SCORES, "cpu", limit)
    q, k, v = (x[:1] for x in operands(dtype, 1, 500, 900, 64, 64))
    first = partial_attention(q, k, v, 0.1, False)
    with LiveBytes([q, k, v, *first]) as live:
        merge(first, partial_attention(q, k, v, 0.1, False))
    said = partial_bytes(torch.device("cpu"), dtype, 1, 500, 900, 64) - sum(t.nbytes for t in first)
    assert 0.6 * said <= live.peak <= 1.05 * said
