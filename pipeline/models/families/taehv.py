"""TAEHV and kin, in our own modules: see ``models/taehv``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isqrt, prod
from typing import Any

from tvae.pipeline.models.families.family import CLIP, Config, Family, LatentGeometry
from tvae.pipeline.models.latent_space import LatentSpace
from tvae.pipeline.models.layout import Kin, Layout, Shapes
from tvae.pipeline.models.stepping import Cuts, Stepping, own_method

__all__ = ["FAMILIES"]

_LEVELS = 3
_COLOURS = 3
_WIDTHS = (256, 128, 64, 64)
"""Of most decoders; the last is most encoders'."""
_H3 = (2, 24)
"""Patch and channels of MiniMax H3's, which goes through a clip in pieces: its layers are not all there is to know."""


def _geometry(group: int = 1) -> Callable[[Config], LatentGeometry]:
    return lambda c: LatentGeometry(
        int(c.get("patch_size", 1)) * 2**_LEVELS,
        prod(c.get("encoder_time", (2, 2, 1))),
        1,
        int(c.get("latent_channels", 16)),
        latent_group=group,
    )


def _plain(shapes: Shapes) -> Iterator[dict[str, Any]]:
    """The decoder of most: a convolution ends each level."""
    widths = [_sides(shapes, f"decoder.{n}")[0] for n in (1, 8, 14, 20)]
    yield from _read_off(shapes, "decoder.1", widths, (7, 13, 19), large=False)


def _super(shapes: Shapes) -> Iterator[dict[str, Any]]:
    """The super decoder: a level ends with four times the channels of the next, shuffled into pixels."""
    widths = [_sides(shapes, "decoder.0")[0], *(_sides(shapes, f"decoder.{n}")[0] // 4 for n in (4, 11, 18))]
    yield from _read_off(shapes, "decoder.0", widths, (7, 14, 21), large=True)


def _read_off(
    shapes: Shapes, first: str, widths: list[int], spread: tuple[int, ...], *, large: bool
) -> Iterator[dict[str, Any]]:
    """first: the layer that latents come to. spread: numbers of the decoder's layers that make frames. What one side
    does not tell is as in the other, or as in most."""
    pooled = [_sides(shapes, f"encoder.{n}.conv") for n in (2, 7, 12)]
    made = [_sides(shapes, f"decoder.{n}.conv") for n in spread]
    encoder_time = tuple(taken // given for given, taken in pooled)
    decoder_time = tuple(given // taken for given, taken in made)
    begin, end = _sides(shapes, "encoder.0"), _sides(shapes, "encoder.17")
    channels = max(_sides(shapes, first)[1], end[0])
    colours = max(begin[1], _sides(shapes, f"decoder.{spread[-1] + (1 if large else 3)}")[0])
    width = max(begin[0], end[1])
    if not any(name.startswith("encoder.") for name in shapes):
        encoder_time, width = decoder_time[::-1], _WIDTHS[-1]
    if not any(name.startswith("decoder.") for name in shapes):
        decoder_time, widths = encoder_time[::-1], [*_WIDTHS]
    patch = isqrt(colours // _COLOURS)
    if prod(encoder_time) == prod(decoder_time) and (patch, channels) != _H3 and min(patch, *widths) > 0:
        yield {
            "patch_size": patch,
            "latent_channels": channels,
            "encoder_width": width,
            "decoder_widths": tuple(widths),
            "encoder_time": encoder_time,
            "decoder_time": decoder_time,
            "large": large,
        }


def _sides(shapes: Shapes, layer: str) -> tuple[int, int]:
    """Channels that a convolution gives and takes; of one that is not there, 1."""
    found = shapes.get(f"{layer}.weight", ())
    return (found[0], found[1]) if len(found) == 4 and 0 not in found else (1, 1)


def _space(_config: Config, _stored: tuple[tuple[float, ...], ...]) -> LatentSpace:
    """The encoder's latents are those of the diffusion model."""
    return LatentSpace()


def _layers(patch: int, channels: int) -> dict[str, Any]:
    return {"patch_size": patch, "latent_channels": channels}


FAMILIES = [
    Family(
        "TAEHV",
        "video",
        _geometry(),
        "TAEHV and kin, small VAEs of video models; no posterior",
        point=True,
        steps={"decode": Stepping(own_method("decode_step"), Cuts(1, 1))},
        frames={"encode": CLIP["encode"]},  # whose pixels know of earlier frames alone, but points have no steps
        space=_space,
        layouts=(
            Layout("TAEHV", r"encoder\.4\.conv\.4\.weight|decoder\.3\.conv\.4\.weight", _plain),
            Layout("TAEHV", r"decoder\.1\.conv\.3\.weight", _super),
        ),
        kin=(
            Kin("taehv", "TAEHV (HunyuanVideo)", _layers(1, 16)),
            Kin("taew2.1", "TAEW2.1 (Wan 2.1, Qwen-Image)", _layers(1, 16)),
            Kin("taeos1.3", "TAEOS1.3 (Open-Sora 1.3)", _layers(1, 16)),
            Kin("taecvx", "TAECVX (CogVideoX)", _layers(1, 16), class_name="TAECVX"),
            Kin("taew2.2", "TAEW2.2 (Wan 2.2 5B)", _layers(2, 48)),
            Kin("taehv1.5", "TAEHV1.5 (HunyuanVideo 1.5)", _layers(2, 32)),
            Kin("taeltx2", "TAELTX2 (LTX-2, LTX-2.3)", _layers(4, 128)),
        ),
    ),
    Family(
        "TAECVX",
        "video",
        _geometry(2),
        "TAEHV of CogVideoX; clips of 1 + 8k or 8k frames; no posterior",
        point=True,
        steps={"decode": Stepping(own_method("decode_step"), Cuts(0, 2, rest_first=True))},
        frames={"encode": CLIP["encode"]},
        space=_space,
    ),
]
