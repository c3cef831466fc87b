"""Which calls the equivalence check and the benchmark make of each operation."""

from __future__ import annotations

import torch

from tvae.kernels.oracle import Case, Oracle
from tvae.kernels.registry import OPERATIONS

__all__ = ["measured_case", "small_cases"]


def measured_case(operation: str, dtype: torch.dtype, device: torch.device, size: int, channels: int) -> Case:
    """The call that is timed: one picture of size x size with so many channels, channels-last, everything fused.

    wide_attention gets the tokens of an eighth of the size, in one head of four times the channels; ``sample`` the
    latents of that size; ``enlarge`` and ``enlarge_conv`` a picture of half the size; ``conv3d`` six frames of half the
    size and three quarters of the channels, which are what its levels differ in.
    """
    make = Oracle(dtype, device)
    small, half, narrower = max(2, size // 8), max(1, size // 2), max(1, channels * 3 // 4)
    if operation == "wide_attention":
        return make.attention("measured", 1, 1, small * small, small * small, 4 * channels)
    if operation == "sample":
        return make.sample("measured", 1, channels, small, small)
    if operation == "finish_stats":
        return make.finish("measured", 1, channels, max(1, min(256, size)))
    if operation == "group_stats":
        return make.group("measured", make.picture(1, channels, size, size))
    if operation == "norm_act":
        return make.norm("measured", make.picture(1, channels, size, size))
    if operation == "add_stats":
        return make.add("measured", make.picture(1, channels, size, size), into=True)
    if operation == "rms_norm_act":
        return make.rms("measured", make.picture(1, channels, size, size))
    if operation == "pad":
        return make.padded("measured", make.picture(1, channels, size, size), (1, 1, 1, 1), "replicate", "silu")
    if operation == "conv3d":
        return make.conv3d("measured", 1, narrower, narrower, 6, half, half)
    if operation == "conv_add":
        return make.conv_add("measured", 1, channels, channels, size, size)
    if operation == "enlarge_conv":
        return make.enlarging("measured", 1, channels, channels, half, half)
    if operation == "conv_from_few":
        return make.from_few("measured", 1, 3, channels, size, size, into=True)
    if operation == "conv_to_few":
        return make.to_few("measured", 1, channels, 3, size, size)
    if operation == "enlarge":
        return make.enlarged("measured", make.picture(1, channels, half, half), (2, 2))
    if operation == "frames_to_tensor":
        return make.to_tensor("measured", 1, size, size, torch.uint8)
    if operation == "tensor_to_frames":
        return make.to_frames("measured", 1, size, size, torch.uint8)
    raise ValueError(f"unknown operation '{operation}'; one of {', '.join(OPERATIONS)}")


def small_cases(operation: str, dtype: torch.dtype, device: torch.device) -> list[Case]:
    """Small calls that cover an operation's arguments: options left out, batches, bands of rows, clips, odd sizes."""
    m = Oracle(dtype, device)
    picture, batch, clip = m.picture(1, 64, 40, 24), m.picture(2, 32, 17, 9), m.picture(1, 32, 3, 12, 10)
    band = m.picture(2, 32, 40, 24)[:, :, 3:20]
    plain = picture.contiguous()
    shapes = (("picture", picture), ("batch", batch), ("clip", clip), ("band", band), ("NCHW", plain))
    if operation == "group_stats":
        far = (m.picture(1, 64, 40, 24, far=30), "far from zero"), *((x, label) for label, x in shapes)
        return [m.group(label, x) for x, label in far]
    if operation == "finish_stats":
        return [
            m.finish("blocks", 1, 64, 7),
            m.finish("batch", 2, 32, 1),
            m.finish("no weights", 1, 64, 5, weights=False),
            m.finish("no offset", 1, 64, 5, offset=False),
        ]
    if operation == "norm_act":
        return [m.norm("no activation", picture, act=None), *(m.norm(label, x) for label, x in shapes)]
    if operation == "add_stats":
        return [
            *(m.add(label, x) for label, x in shapes),
            m.add("no residual", picture, residual=False),
            m.add("no bias", picture, bias=False),
            m.add("no statistics", picture, stats=False),
            m.add("into another", picture, into=True),
            m.add("in place", batch, into=True, aliased=True),
        ]
    if operation == "rms_norm_act":
        return [
            *(m.rms(label, x) for label, x in shapes),
            m.rms("form rms", picture, form="rms"),
            m.rms("no weights", picture, weights=False),
            m.rms("an offset", batch, offset=True),
            m.rms("no activation", picture, act=None),
        ]
    if operation == "pad":
        return [
            *(m.padded(label, x, (1, 2, 0, 3), "constant") for label, x in shapes),
            m.padded("causal", clip, (1, 1, 1, 1, 2, 0), "replicate", "silu"),
            m.padded("reflected", batch, (2, 1, 3, 2), "reflect"),
            m.padded("normalised", band, (0, 1, 0, 1), "constant", None),
        ]
    if operation == "enlarge":
        return [
            *(m.enlarged(label, x, (2,) * (x.ndim - 2)) for label, x in shapes),
            m.enlarged("wider", clip, (1, 2, 3)),
        ]
    if operation == "conv3d":
        return [
            m.conv3d("causal", 1, 32, 48, 5, 9, 7),
            m.conv3d("a bias", 2, 16, 32, 3, 8, 6, bias=True),
            m.conv3d("every other frame", 1, 32, 16, 5, 8, 8, step=2),
        ]
    if operation == "conv_add":
        return [
            m.conv_add("picture", 1, 32, 48, 20, 12),
            m.conv_add("batch", 2, 16, 32, 9, 7, stats=False),
            m.conv_add("no bias", 1, 32, 32, 8, 8, bias=False),
            m.conv_add("nothing to add", 1, 32, 32, 8, 8, residual=False, bias=False),
            m.conv_add("no residual, into another", 1, 32, 32, 8, 8, residual=False, into=True),
            m.conv_add("a band at the top", 1, 32, 32, 9, 8, pads=(1, 1, 1, 0)),
            m.conv_add("a band between", 1, 32, 32, 10, 8, pads=(1, 1, 0, 0)),
            m.conv_add("into another", 1, 32, 32, 8, 8, into=True),
            m.conv_add("over the residual", 1, 32, 32, 8, 8, into=True, aliased=True),
        ]
    if operation == "enlarge_conv":
        return [
            m.enlarging("picture", 1, 32, 48, 20, 12),
            m.enlarging("batch", 2, 16, 32, 9, 7, stats=False),
            m.enlarging("no bias", 1, 32, 32, 8, 8, bias=False),
            m.enlarging("a band at the bottom", 1, 32, 32, 9, 8, pads=(1, 1, 0, 1)),
            m.enlarging("a part between", 1, 32, 32, 10, 8, pads=(0, 1, 0, 0)),
            m.enlarging("into another", 1, 32, 32, 8, 8, into=True),
        ]
    if operation == "conv_from_few":
        return [
            m.from_few("picture", 1, 3, 64, 20, 12),
            m.from_few("batch", 2, 4, 40, 9, 7, stats=False),
            m.from_few("into another", 1, 3, 32, 8, 8, into=True),
        ]
    if operation == "conv_to_few":
        return [
            m.to_few("picture", 1, 64, 3, 20, 12),
            m.to_few("batch", 2, 40, 4, 9, 7, act=None),
            m.to_few("no norm", 1, 32, 3, 8, 8, norm=False),
        ]
    if operation == "wide_attention":
        return [
            m.attention("one frame", 1, 1, 100, 100, 512),
            m.attention("a band of queries", 1, 1, 40, 130, 512),
            m.attention("frames", 2, 3, 48, 48, 384),
            m.attention("causal", 1, 3, 50, 50, 384, causal=True),
        ]
    if operation == "sample":
        return [m.sample("latents", 1, 16, 17, 9), m.sample("batch", 2, 4, 8, 8)]
    to = m.to_tensor if operation == "frames_to_tensor" else m.to_frames
    return [to("8 bits", 2, 17, 13, torch.uint8), to("16 bits", 1, 9, 20, torch.uint16)]
