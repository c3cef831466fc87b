"""Between uint8 frames and the [-1, 1] tensors models compute with.

Bytes cross to the device and back, not floats; the arithmetic is done there, one frame at a time, so that what it needs
on the way does not grow with the clip.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tvae.kernels.operations import frames_to_tensor as to_tensor
from tvae.kernels.operations import tensor_to_frames as to_frames
from tvae.pipeline.errors import InputError

__all__ = ["check_finite", "frames_to_tensor", "levels_to_device", "tensor_to_frames", "tensor_to_levels"]


def frames_to_tensor(
    frames: Sequence[np.ndarray], device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Tensor:
    """uint8 [H, W, 3] frames of one size -> [N, 3, H, W] in [-1, 1]: x / 127.5 - 1 in float32, then cast to dtype.

    float32 frames are in [-1, 1] already.
    """
    height, width, channels = frames[0].shape
    pixels = torch.empty((len(frames), channels, height, width), dtype=dtype, device=device)
    for place, frame in zip(pixels, frames, strict=True):
        levels = torch.from_numpy(np.stack([frame])).to(device)
        place.copy_(_values(levels, dtype)[0])
    return pixels


def levels_to_device(pictures: Sequence[Tensor], device: torch.device, dtype: torch.dtype) -> Tensor:
    """uint8 or float32 [H, W, 3] pictures of one size on the CPU -> [N, 3, H, W] in [-1, 1], as ``frames_to_tensor``.

    The device fetches them from pinned memory in its own time. All of them are float32 on the way.
    """
    levels = torch.empty((len(pictures), *pictures[0].shape), dtype=pictures[0].dtype, device=device)
    for place, picture in zip(levels, pictures, strict=True):
        place.copy_(picture, non_blocking=True)
    return _values(levels, dtype)


def _values(levels: Tensor, dtype: torch.dtype) -> Tensor:
    """[N, H, W, 3] -> [N, 3, H, W], channels innermost."""
    if levels.dtype == torch.float32:
        return levels.permute(0, 3, 1, 2).to(dtype)
    return to_tensor.frames_to_tensor(levels, dtype)


def tensor_to_levels(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """[N, 3, H, W] -> uint8 [N, H, W, 3] as ``tensor_to_frames``, and whether all values of each are finite [N].

    Nothing waits for the device: see ``check_finite``. InputError for pictures of other than three channels.
    """
    _check_rgb(pixels)
    values = pixels.detach().to(torch.float32)
    return to_frames.tensor_to_frames(values, torch.uint8), torch.isfinite(values).flatten(1).all(1)


def _check_rgb(pixels: Tensor) -> None:
    if pixels.shape[1] != 3:
        raise InputError(
            f"the VAE makes pictures of {pixels.shape[1]} channels, and those of three (RGB) are written; call it in "
            "Python, through TiledVAE"
        )


def check_finite(finite: Tensor) -> None:
    """InputError when a decoded picture is not finite: such pixels are never written."""
    if not bool(finite):
        raise InputError("the decoded picture holds NaN or infinite values; try --dtype float32, or check the latents")


def tensor_to_frames(pixels: Tensor) -> list[np.ndarray]:
    """[N, 3, H, W] of any floating type on any device -> uint8 [H, W, 3] frames: clamped, rounded half to even.

    Raises InputError when a value is not finite: such pixels are never written; and as ``tensor_to_levels``.
    """
    _check_rgb(pixels)
    frames = []
    for picture in pixels.detach():
        values = picture.unsqueeze(0).to(torch.float32)
        check_finite(torch.isfinite(values).all())
        frames.append(to_frames.tensor_to_frames(values, torch.uint8)[0].cpu().numpy())
    return frames
