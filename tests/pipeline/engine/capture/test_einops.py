"""Models that use einops run in strips in every process, and their own calls work as before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("einops")

MODEL = """
import torch
import torch.nn.functional as F
from torch import nn

{imports}

class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(4, channels), nn.Conv2d(channels, 3 * channels, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, 1)
        q, k, v = ({rearrange}(part, "b c h w -> b 1 (h w) c").contiguous() for part in parts)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + {rearrange}(y, "b 1 (h w) c -> b c h w", b=b, c=c, h=h, w=w)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(12, 16, 3, padding=1), nn.Conv2d(16, 12, 3, padding=1)
        self.attention = Attention(16)

    def encode(self, x):
        x = {rearrange}(x, "b c (h p) (w q) -> b (c p q) h w", p=2, q=2)
        return self.attention(self.first(x))

    def decode(self, z):
        return {rearrange}(self.last(self.attention(z)), "b (c p q) h w -> b c (h p) (w q)", p=2, q=2)
"""

CHECK = """
import copy
import torch
from model import Model
from tvae.pipeline import TiledVAE

def error(result, reference):
    return float((result - reference).norm() / reference.norm())

torch.manual_seed(0)
model = Model().eval()
double = copy.deepcopy(model).double()
with torch.no_grad():
    for strip, (height, width) in ((2, (32, 24)), (3, (48, 20))):
        tiled = TiledVAE(model, "cpu", strip=strip)
        x = torch.randn(1, 3, height, width)
        eager = model.encode(x)
        latents = tiled.encode(x)
        decoded = tiled.decode(eager)
        assert tiled.plan(tuple(x.shape), "encode").strips > 1
        assert error(latents, double.encode(x.double())) < 1e-5
        assert error(decoded, double.decode(eager.double())) < 1e-5
        assert torch.equal(model.encode(x), eager)
print("exact")
"""

FORMS = {
    "function": {"imports": "from einops import rearrange", "rearrange": "rearrange"},
    "module": {"imports": "import einops", "rearrange": "einops.rearrange"},
}
SEEDS = [pytest.param(seed, marks=[] if seed < 1 else pytest.mark.slow) for seed in range(8)]


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("form", FORMS)
def test_each_process_captures_and_leaves_the_model_as_it_was(form: str, seed: int, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL.format(**FORMS[form]))
    environment = os.environ | {
        "PYTHONHASHSEED": str(seed),
        "XDG_CACHE_HOME": str(tmp_path),
        "PYTHONPATH": str(tmp_path),
    }
    run = subprocess.run(
        [sys.executable, "-c", CHECK], capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert run.stdout.split() == ["exact"], run.stderr
