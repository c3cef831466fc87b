"""Attention over few keys in 16 bits: the model's own error, whichever of PyTorch's ways its operands lead to."""

from __future__ import annotations

import copy
import statistics
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from over_time import OverTime
from slow_but import slow_but
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.rules import attention


@pytest.mark.long
@pytest.mark.parametrize("in_rows", [True, False])
@pytest.mark.parametrize("dtype", slow_but([torch.bfloat16], [torch.bfloat16, torch.float16]), ids=str)
@pytest.mark.parametrize("keys", slow_but([2, 3, 17, 40], [2, 3, 17, 40, 256]))
@torch.no_grad()
def test_the_models_own_error(keys: int, dtype: torch.dtype, in_rows: bool) -> None:
    ratios = []
    for seed in range(4):
        torch.manual_seed(seed)
        model, x = OverTime(in_rows).eval().to(dtype), torch.randn(1, 3, keys, 10, 24).to(dtype)
        exact = copy.deepcopy(model).double().encode(x.double())
        errors = [(y.double() - exact).norm() for y in (TiledVAE(model, "cpu", strip=3).encode(x), model.encode(x))]
        ratios.append(float(errors[0] / errors[1]))
    assert statistics.mean(ratios) <= 1.01, ratios


class OverPixels(nn.Module):
    """Each pixel attends to all, or to those before it."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.into, self.out, self.causal = nn.Conv2d(3, 48, 1), nn.Conv2d(16, 4, 1), causal

    def encode(self, x: Tensor) -> Tensor:
        q, k, v = self.into(x).flatten(2).transpose(1, 2).unsqueeze(1).chunk(3, -1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.squeeze(1).transpose(1, 2).reshape(x.shape[0], 16, *x.shape[-2:]))

    def decode(self, z: Tensor) -> Tensor:
        return z


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@torch.no_grad()
def test_of_small_pictures_too(dtype: torch.dtype, causal: bool) -> None:
    ratios = []
    for seed in range(6):
        torch.manual_seed(seed)
        model, x = OverPixels(causal).eval().to(dtype), torch.randn(40, 3, 6, 4).to(dtype)
        exact = copy.deepcopy(model).double().encode(x.double())
        errors = [(y.double() - exact).norm() for y in (TiledVAE(model, "cpu", strip=2).encode(x), model.encode(x))]
        ratios.append(float(errors[0] / errors[1]))
    assert statistics.mean(ratios) <= 1.01, ratios


@given(
    samples=st.integers(1, 9),
    heads=st.integers(1, 9),
    queries=st.integers(1, 5),
    keys=st.integers(1, 16),
    masked=st.sampled_from([None, "each", "all"]),
    most=st.integers(1, 2000),
)
def test_as_many_at_a_time_as_are_widened(
    samples: int, heads: int, queries: int, keys: int, masked: str | None, most: int
) -> None:
    """No call takes more than was said, but for one place; the numbers do not depend on it."""
    random = torch.Generator().manual_seed(1)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).bfloat16()

    q, k, v = noise(samples, heads, queries, 4), noise(samples, heads, keys, 4), noise(samples, heads, keys, 6)
    bias = None if masked is None else noise(samples if masked == "each" else 1, heads, queries, keys)
    sizes, plain = list[int](), F.scaled_dot_product_attention

    def counted(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, **more: object) -> Tensor:
        y = plain(q, k, v, bias)
        assert {t.dtype for t in (q, k, v, y)} == {torch.float32}
        sizes.append(sum(t.nbytes for t in (q, k, v, y)) + y.nbytes // 2)
        return y

    with (
        mock.patch.object(attention, "_WIDENED", most),
        mock.patch.object(attention.functional, plain.__name__, counted),
    ):
        got = attention._by_samples((q, k, v), bias)
    assert max(sizes) <= max(most, attention._widened_bytes(q, k, v) // max(samples, heads))
    want = plain(q.float(), k.float(), v.float(), None if bias is None else bias.float()).bfloat16()
    torch.testing.assert_close(got, want, rtol=0.01, atol=1e-6)
