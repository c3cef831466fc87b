"""Which dimensions other programs' latents have: diffusers' shapes, with and without a batch."""

from __future__ import annotations

from torch import Tensor

from tvae.pipeline.errors import InputError

__all__ = ["cut_apart"]


def cut_apart(latents: Tensor, channels: int, *, of_clips: bool, where: str) -> list[Tensor]:
    """Single images and clips, each [C, t, h, w].

    latents: [C, h, w], [N, C, h, w], [N, C, t, h, w] or [C, t, h, w]. channels: C. of_clips: the VAE is one for videos,
    and its four dimensions are a clip's where both readings fit. where: the file, for errors.

    Raises InputError where the channels are others, or the shape is none of these.
    """
    shape = [*latents.shape]
    if 0 in shape:
        raise InputError(f"'{where}': the latents are empty, shape {shape}")
    if latents.ndim == 3 and shape[0] == channels:
        return [latents.unsqueeze(1)]
    if latents.ndim == 5 and shape[1] == channels:
        return [*latents.unbind(0)]
    if latents.ndim == 4:
        clip, batch = shape[0] == channels, shape[1] == channels
        if clip and (of_clips or not batch):
            return [latents]
        if batch:
            return [one.unsqueeze(1) for one in latents.unbind(0)]
    if latents.ndim not in (3, 4, 5):
        raise InputError(f"'{where}': latents have shape [C, h, w] or [C, t, h, w], or several of those, not {shape}")
    told = {3: shape[:1], 4: [*dict.fromkeys(shape[:2])], 5: shape[1:2]}[latents.ndim]
    raise InputError(f"'{where}': this VAE has {channels} channels, the file {' or '.join(map(str, told))} ({shape})")
