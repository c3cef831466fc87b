"""TAESD over again, from its files alone: layers by number, with functions of PyTorch. And files with random weights.

It shares no code with ``tvae.pipeline.models.taesd``: what a layer is, the names of its tensors say; which of the
encoder's convolutions halve, and where the decoder doubles, the plans here.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

Weights = Mapping[str, Tensor]
ENCODERS = {
    "plain": "conv block half block block block half block block block half block block block conv",
    "pooled": "conv block half block block block half block block block half pool pool pool conv",
    "deep": "half relu half relu block half block block block half block block block half block block block conv",
}
_LEVEL = "block block block double conv "
DECODERS = {
    "plain": f"bound conv relu {_LEVEL * 3}block conv",
    "pooled": f"bound conv relu pool pool pool double conv {_LEVEL * 2}block conv",
    "deep": f"bound conv relu {_LEVEL * 5}block conv",
}


def encoded(weights: Weights, pixels: Tensor, kind: str) -> Tensor:
    """[N, 3, H, W] from -1 to 1, as diffusers has them -> latents."""
    return _through(weights, ENCODERS[kind].split(), (pixels + 1) / 2)


def decoded(weights: Weights, latents: Tensor, kind: str) -> Tensor:
    """Latents -> [N, 3, H, W] from -1 to 1."""
    return 2 * _through(weights, DECODERS[kind].split(), latents) - 1


def _through(w: Weights, plan: list[str], x: Tensor) -> Tensor:
    for n, what in enumerate(plan):
        if what in ("conv", "half"):
            x = F.conv2d(x, w[f"{n}.weight"], w.get(f"{n}.bias"), stride=1 + (what == "half"), padding=1)
        elif what == "bound":
            x = 3 * (x / 3).tanh()
        elif what == "relu":
            x = x.clamp(min=0)
        elif what == "double":
            x = x.repeat_interleave(2, -1).repeat_interleave(2, -2)
        else:
            if what == "pool":
                h = F.conv2d(x, w[f"{n}.pool.0.weight"])
                h = F.group_norm(h, 4, w[f"{n}.pool.1.weight"], w[f"{n}.pool.1.bias"]).clamp(min=0)
                x = x + F.conv2d(h, w[f"{n}.pool.3.weight"])
            h = x
            for m in (0, 2, 4):
                h = F.conv2d(h, w[f"{n}.conv.{m}.weight"], w[f"{n}.conv.{m}.bias"], padding=1)
                h = h.clamp(min=0) if m < 4 else h
            x = (h + x).clamp(min=0)
    return x


def random_file(side: str, kind: str, latent: int, seed: int = 0) -> dict[str, Tensor]:
    """What the author's file of one side holds, with the published widths."""
    generator = torch.Generator().manual_seed(seed)
    plan = (ENCODERS if side == "encoder" else DECODERS)[kind].split()
    convs = [n for n, what in enumerate(plan) if what in ("conv", "half")]
    widths = {"encoder": [3, 64, 64, 64, 64, latent], "decoder": [latent, 64, 64, 64, 64, 3]}[side]
    if kind == "deep":
        widths = {"encoder": [3, 32, *[64] * 4, latent], "decoder": [latent, 256, 128, *[64] * 4, 3]}[side]
    biased = {convs[0], convs[-1], *(n for n in convs if n + 1 < len(plan) and plan[n + 1] == "relu")}
    found: dict[str, Tensor] = {}

    def drawn(name: str, *shape: int) -> None:
        fan = max(1, int(torch.Size(shape[1:]).numel()))
        value = torch.randn(shape, generator=generator) * (1.3 / fan**0.5 if len(shape) > 1 else 0.3)
        found[name] = value + 1 if name.endswith("pool.1.weight") else value

    channels = widths[0]
    for n, what in enumerate(plan):
        if n in convs:
            out = widths[convs.index(n) + 1]
            drawn(f"{n}.weight", out, channels, 3, 3)
            if n in biased:
                drawn(f"{n}.bias", out)
            channels = out
        elif what in ("block", "pool"):
            for m in (0, 2, 4):
                drawn(f"{n}.conv.{m}.weight", channels, channels, 3, 3)
                drawn(f"{n}.conv.{m}.bias", channels)
            if what == "pool":
                drawn(f"{n}.pool.0.weight", 4 * channels, channels, 1, 1)
                drawn(f"{n}.pool.1.weight", 4 * channels)
                drawn(f"{n}.pool.1.bias", 4 * channels)
                drawn(f"{n}.pool.3.weight", channels, 4 * channels, 1, 1)
    return found
