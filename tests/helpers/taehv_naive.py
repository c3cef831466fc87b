"""TAEHV over again, frame by frame and layer by layer, with functions of PyTorch and a table of layers.

It shares no code with ``tvae.pipeline.models.taehv``: layers are told by the names of their tensors and the shapes of
those, as in a published file, and a frame goes as far as it can before the next one comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

Weights = Mapping[str, Tensor]


def encoded(weights: Weights, video: Tensor, patch: int) -> Tensor:
    """[T, 3, H, W] from 0 to 1 to [t, C, h, w]; the last frame is repeated until all frames are taken up."""
    frames = [*F.pixel_unshuffle(video, patch)]
    plan = ["conv", "relu", *["pool", "half", "memory", "memory", "memory"] * 3, "conv"]
    every = 1
    for n in (2, 7, 12):
        out, taken = weights[f"encoder.{n}.conv.weight"].shape[:2]
        every *= taken // out
    while len(frames) % every:
        frames.append(frames[-1])
    return torch.stack([*_through(_named(weights, "encoder"), plan, frames)])


def decoded(weights: Weights, latents: Tensor, patch: int, *, drops: bool = True) -> Tensor:
    """[t, C, h, w] to [T, 3, H, W] from 0 to 1. drops: the frames before the clip's first go."""
    if "decoder.1.conv.3.weight" in weights:
        level = ["wide", "wide", "wide", "conv", "relu", "shuffle", "grow"]
        plan = ["conv", *level * 3, "conv"]
        grown = (7, 14, 21)
    else:
        level = ["memory", "memory", "memory", "double", "grow", "conv"]
        plan = ["bound", "conv", "relu", *level * 3, "relu", "conv"]
        grown = (7, 13, 19)
    found = torch.stack([*_through(_named(weights, "decoder"), plan, [*latents])])
    many = 1
    for n in grown:
        out, taken = weights[f"decoder.{n}.conv.weight"].shape[:2]
        many *= out // taken
    return F.pixel_shuffle(found, patch).clamp(0, 1)[many - 1 if drops else 0 :]


def _named(weights: Weights, side: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{side}."): value for name, value in weights.items() if name.startswith(f"{side}.")}


def _through(w: Mapping[str, Tensor], plan: list[str], frames: list[Tensor]) -> Iterator[Tensor]:
    past: dict[int, Tensor] = {}
    waiting: dict[int, list[Tensor]] = {}

    def conv(x: Tensor, name: str, **more: int) -> Tensor:
        weight = w[f"{name}.weight"]
        return F.conv2d(x[None], weight, w.get(f"{name}.bias"), padding=weight.shape[-1] // 2, **more)[0]

    def send(x: Tensor, at: int) -> Iterator[Tensor]:
        if at == len(plan):
            yield x
            return
        kind, n = plan[at], str(at)
        if kind == "pool":
            waiting.setdefault(at, []).append(x)
            out, taken = w[f"{n}.conv.weight"].shape[:2]
            if len(waiting[at]) < taken // out:
                return
            x = conv(torch.cat(waiting.pop(at)), f"{n}.conv")
        elif kind == "grow":
            many = conv(x, f"{n}.conv")
            for one in many.split(x.shape[0]):
                yield from send(one, at + 1)
            return
        elif kind in ("memory", "wide"):
            both = torch.cat([x, past.get(at, torch.zeros_like(x))])
            past[at] = x
            if kind == "memory":
                h = conv(both, f"{n}.conv.0").relu()
                x = (conv(conv(h, f"{n}.conv.2").relu(), f"{n}.conv.4") + x).relu()
            else:
                h = conv(both, f"{n}.conv.0", groups=both.shape[0])
                x = conv(conv(h, f"{n}.conv.1").relu(), f"{n}.conv.3") + x
        elif kind == "bound":
            x = 3 * torch.tanh(x / 3)
        elif kind == "relu":
            x = x.relu()
        elif kind == "double":
            x = x.repeat_interleave(2, 1).repeat_interleave(2, 2)
        elif kind == "shuffle":
            x = F.pixel_shuffle(x, 2)
        else:
            x = conv(x, n, stride=2) if kind == "half" else conv(x, n)
        yield from send(x, at + 1)

    for frame in frames:
        yield from send(frame, 0)
