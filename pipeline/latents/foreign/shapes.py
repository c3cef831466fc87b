"""Which dimensions other programs' latents have: diffusers' shapes, with and without a batch, and rows of tokens.

Source of the tokens: diffusers ``pipelines/flux`` (``_pack_latents``: squares of 2x2 latents, channel by channel) and
``pipelines/flux2`` (``_pack_latents``: a token is a latent of model space).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tvae.pipeline.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Wanted", "cut_apart"]


class Wanted(NamedTuple):
    """What the VAE takes in the space that was named: channels; whether it is one for videos, so that four dimensions
    are a clip's where both readings fit; and, of tokens, the (width, height) of their picture in latents."""

    channels: int
    of_clips: bool
    grid: tuple[int, int] | None = None


def cut_apart(latents: Tensor, wanted: Wanted, where: str) -> list[Tensor]:
    """Single images and clips, each [C, t, h, w].

    latents: [C, h, w], [N, C, h, w], [N, C, t, h, w] or [C, t, h, w]; where the grid was named, tokens [N, n, C] or
    [N, n, 4C], with or without N. where: the file, for errors.

    Raises InputError where the channels are others, or the shape is none of these.
    """
    shape, channels = [*latents.shape], wanted.channels
    if 0 in shape:
        raise InputError(f"'{where}': the latents are empty, shape {shape}")
    if wanted.grid is not None:
        return [one.unsqueeze(1) for one in _unpacked(latents, channels, wanted.grid, where)]
    if latents.ndim == 3 and shape[0] == channels:
        return [latents.unsqueeze(1)]
    if latents.ndim == 5 and shape[1] == channels:
        return [*latents.unbind(0)]
    if latents.ndim == 4:
        clip, batch = shape[0] == channels, shape[1] == channels
        if clip and (wanted.of_clips or not batch):
            return [latents]
        if batch:
            return [one.unsqueeze(1) for one in latents.unbind(0)]
    if latents.ndim not in (3, 4, 5):
        raise InputError(f"'{where}': latents have shape [C, h, w] or [C, t, h, w], or several of those, not {shape}")
    if latents.ndim == 3 and shape[2] in (channels, 4 * channels):
        raise InputError(f"'{where}': {shape} looks like rows of tokens; pass the picture's size with --size WxH")
    told = {3: shape[:1], 4: [*dict.fromkeys(shape[:2])], 5: shape[1:2]}[latents.ndim]
    raise InputError(f"'{where}': this VAE has {channels} channels, the file {' or '.join(map(str, told))} ({shape})")


def _unpacked(tokens: Tensor, channels: int, grid: tuple[int, int], where: str) -> list[Tensor]:
    """[C, h, w] each. grid: (width, height), of which squares of 2x2 take whole ones alone."""
    if tokens.ndim == 2:
        tokens = tokens.unsqueeze(0)
    shape = [*tokens.shape]
    if tokens.ndim != 3 or shape[2] not in (channels, 4 * channels):
        tell = f"[n, {channels}] or [n, {4 * channels}]"
        raise InputError(f"'{where}': --size is for rows of tokens, {tell}, or several of those, not {shape}")
    side = 1 if shape[2] == channels else 2
    width, height = (length // side for length in grid)
    if shape[1] != width * height:
        raise InputError(f"'{where}' has {shape[1]} tokens, a picture of --size has {width * height}")
    squares = tokens.unflatten(2, (channels, side, side)).unflatten(1, (height, width))  # [N, h, w, C, side, side]
    return [*squares.permute(0, 3, 1, 4, 2, 5).reshape(shape[0], channels, height * side, width * side).unbind(0)]
