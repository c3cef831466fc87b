"""SeedVR2's VAE over again, frame by frame in float64 and slice by slice: the oracle for ours.

It follows the published slicing (the first frame with ``split_size`` more, then ``split_size`` at a time, each
convolution remembering its last input frames), knows the weights by their published names alone, and does by hand what
ours leaves to torch: convolutions over time tap by tap, statistics, softmax, and the shuffle by strided assignment.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

Frames = list[Tensor]
"""Each [C, H, W]."""


class Naive:
    """One clip at a time. groups: of every normalisation."""

    def __init__(self, weights: Mapping[str, Tensor], groups: int) -> None:
        self.weights = {name: value.double() for name, value in weights.items()}
        self.groups = groups
        self.memory: dict[str, Frames] = {}
        self.begins = True

    def encode(self, clip: Tensor, split: int = 4) -> Tensor:
        """[3, T, H, W] -> moments [2C, 1 + (T - 1) / 4, H/8, W/8]."""
        return self._sliced(self._encoder, clip, split)

    def decode(self, latents: Tensor, split: int = 1) -> Tensor:
        """[C, t, h, w] -> [3, 1 + 4(t - 1), 8h, 8w]."""
        return self._sliced(self._decoder, latents, split)

    def _sliced(self, side: object, clip: Tensor, split: int) -> Tensor:
        frames = list(clip.double().unbind(1))
        ends = [1 + split, *range(1 + 2 * split, len(frames) + split, split)]
        self.memory, made, start = {}, [], 0
        for end in ends:
            self.begins = start == 0
            made += side(frames[start:end])  # type: ignore[operator]
            start = end
        return torch.stack(made, dim=1)

    def _encoder(self, x: Frames) -> Frames:
        x = self._conv("encoder.conv_in", x)
        level = 0
        while f"encoder.down_blocks.{level}.resnets.0.norm1.weight" in self.weights:
            block = f"encoder.down_blocks.{level}"
            x = self._resnets(block, x)
            down = f"{block}.downsamplers.0.conv"
            if f"{down}.weight" in self.weights:
                time = 2 if self.weights[f"{down}.weight"].shape[2] == 3 else 1
                x = self._conv(down, x, stride=(time, 2), border=(0, 1, 0, 1))
            level += 1
        return self._end("encoder", self._middle("encoder.mid_block", x))

    def _decoder(self, x: Frames) -> Frames:
        x = self._middle("decoder.mid_block", self._conv("decoder.conv_in", x))
        level = 0
        while f"decoder.up_blocks.{level}.resnets.0.norm1.weight" in self.weights:
            block = f"decoder.up_blocks.{level}"
            x = self._resnets(block, x)
            if f"{block}.upsamplers.0.conv.weight" in self.weights:
                x = self._conv(f"{block}.upsamplers.0.conv", self._shuffled(f"{block}.upsamplers.0.upscale_conv", x))
            level += 1
        return self._end("decoder", x)

    def _middle(self, name: str, x: Frames) -> Frames:
        x = self._resnet(f"{name}.resnets.0", x)
        x = [self._attended(f"{name}.attentions.0", frame) for frame in x]
        return self._resnet(f"{name}.resnets.1", x)

    def _end(self, name: str, x: Frames) -> Frames:
        return self._conv(f"{name}.conv_out", [self._silu(self._normed(f"{name}.conv_norm_out", f)) for f in x])

    def _resnets(self, block: str, x: Frames) -> Frames:
        layer = 0
        while f"{block}.resnets.{layer}.norm1.weight" in self.weights:
            x = self._resnet(f"{block}.resnets.{layer}", x)
            layer += 1
        return x

    def _resnet(self, name: str, x: Frames) -> Frames:
        h = self._conv(f"{name}.conv1", [self._silu(self._normed(f"{name}.norm1", f)) for f in x])
        h = self._conv(f"{name}.conv2", [self._silu(self._normed(f"{name}.norm2", f)) for f in h])
        if f"{name}.conv_shortcut.weight" in self.weights:
            x = self._conv(f"{name}.conv_shortcut", x, border=(0, 0, 0, 0))
        return [a + b for a, b in zip(x, h, strict=True)]

    def _conv(
        self, name: str, x: Frames, stride: tuple[int, int] = (1, 1), border: tuple[int, ...] = (1, 1, 1, 1)
    ) -> Frames:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        window = weight.shape[2]
        x = [F.pad(frame, border) for frame in x]
        x = ([x[0]] * (window - 1) if self.begins else self.memory.get(name, [])) + x
        self.memory[name] = x[len(x) - (window - stride[0]) :]
        made = []
        for end in range(window, len(x) + 1, stride[0]):
            taps = x[end - window : end]
            made.append(
                sum(F.conv2d(tap, weight[:, :, t], stride=stride[1]) for t, tap in enumerate(taps))
                + bias[:, None, None]
            )
        return made

    def _normed(self, name: str, frame: Tensor) -> Tensor:
        groups = frame.reshape(self.groups, -1)
        centred = groups - groups.mean(1, keepdim=True)
        scaled = centred / (centred.square().mean(1, keepdim=True) + 1e-6).sqrt()
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return scaled.reshape(frame.shape) * weight[:, None, None] + bias[:, None, None]

    def _silu(self, frame: Tensor) -> Tensor:
        return frame / (1 + (-frame).exp())

    def _attended(self, name: str, frame: Tensor) -> Tensor:
        tokens = self._normed(f"{name}.group_norm", frame).flatten(1)  # [C, H·W]
        q, k, v = (self._linear(f"{name}.to_{n}", tokens) for n in "qkv")
        scores = (q.T @ k) / len(tokens) ** 0.5
        shares = (scores - scores.amax(1, keepdim=True)).exp()
        shares = shares / shares.sum(1, keepdim=True)
        return frame + self._linear(f"{name}.to_out.0", v @ shares.T).reshape(frame.shape)

    def _linear(self, name: str, tokens: Tensor) -> Tensor:
        return self.weights[f"{name}.weight"] @ tokens + self.weights[f"{name}.bias"][:, None]

    def _shuffled(self, name: str, x: Frames) -> Frames:
        made: Frames = []
        for at, wide in enumerate(self._conv(name, x, border=(0, 0, 0, 0))):
            channels, (height, width) = x[at].shape[0], x[at].shape[1:]
            times = wide.shape[0] // channels // 4
            for t in range(times):
                if self.begins and at == 0 and t == 1:
                    continue  # the clip's first latent frame stands for a single frame
                frame = wide.new_zeros(channels, 2 * height, 2 * width)
                for row in (0, 1):
                    for column in (0, 1):
                        part = (2 * row + column) * times + t
                        frame[:, row::2, column::2] = wide[part * channels : (part + 1) * channels]
                made.append(frame)
        return made
