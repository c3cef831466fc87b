"""HunyuanVideo's own code fills a mask token by token: it is made at once, where the values are the same."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UnsupportedOp
from tvae.pipeline.models.reference import reference_mode


def prepare_causal_attention_mask(
    n_frame: int, n_hw: int, dtype: torch.dtype, device: torch.device, batch_size: int | None = None
) -> Tensor:
    tokens = n_frame * n_hw
    mask = torch.full((tokens, tokens), float("-inf"), dtype=dtype, device=device)
    for token in range(tokens):
        mask[token, : (token // n_hw + 1) * n_hw] = 0
    return mask if batch_size is None else mask.unsqueeze(0).expand(batch_size, -1, -1)


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv3d(4, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.qkv, self.last = nn.Linear(8, 24), nn.Conv3d(8, 4, 3, padding=1)

    def encode(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x))
        n, c, frames, height, width = h.shape
        q, k, v = self.qkv(h.flatten(2).transpose(1, 2)).chunk(3, -1)
        mask = prepare_causal_attention_mask(frames, height * width, h.dtype, h.device, batch_size=n)
        seen = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], attn_mask=mask[:, None])[:, 0]
        return self.last(h + seen.transpose(1, 2).reshape(n, c, frames, height, width))

    def decode(self, z: Tensor) -> Tensor:
        return self.encode(z)


@torch.no_grad()
def test_a_mask_that_a_function_fills_token_by_token_is_cut() -> None:
    torch.manual_seed(0)
    model, here = Causal().eval(), sys.modules[Causal.__module__]
    tiled = TiledVAE(model, "cpu", strip=3)
    for size in ((10, 9), (13, 8)):
        z = torch.randn(1, 4, 3, *size)
        want = copy.deepcopy(model).double().decode(z.double())
        assert (tiled.decode(z).double() - want).norm() / want.norm() < 1e-5
        plan = tiled.plan(tuple(z.shape), "decode")
        assert not plan.whole
        assert len(plan.segments) > 1
    assert here.prepare_causal_attention_mask is prepare_causal_attention_mask


@pytest.mark.slow
@torch.no_grad()
def test_a_function_of_that_name_with_other_values_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    model, here = Causal().eval(), sys.modules[Causal.__module__]
    original = prepare_causal_attention_mask

    def other(
        n_frame: int, n_hw: int, dtype: torch.dtype, device: torch.device, batch_size: int | None = None
    ) -> Tensor:
        tokens = torch.arange(n_frame * n_hw) // n_hw
        apart = torch.where(tokens[:, None] == tokens, 0.0, float("-inf")).to(dtype)
        return original(n_frame, n_hw, dtype, device, batch_size) + apart

    monkeypatch.setattr(here, "prepare_causal_attention_mask", other)
    with reference_mode(model):
        assert here.prepare_causal_attention_mask is other
    with pytest.raises(UnsupportedOp):
        TiledVAE(model, "cpu", strip=3).decode(torch.randn(1, 4, 2, 13, 5))  # few tokens: each is captured
