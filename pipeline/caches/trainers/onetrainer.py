"""OneTrainer: in ``image/``, a folder for each concept and variation, with a .pt file for each image.

A file has the latent and, of most models, the size of the image and where it was cut. Another one in the folder (see
``caches.concepts.entries.ALL``) has the size of the crop and the path of every image. All are what torch.save writes of
tensors and plain values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from math import sqrt
from pathlib import PurePosixPath
from typing import Any

from tvae.pipeline.caches.spec import Architecture, Entry, Framing, Latents, Size, Subject, Trainer, Wish
from tvae.pipeline.files.stored import Pickled, Stored

__all__ = ["TRAINER"]

_KL, _DC, _FLUX2 = ("AutoencoderKL",), ("AutoencoderDC",), ("AutoencoderKLFlux2",)
_QWEN = ("AutoencoderKLQwenImage", "AutoencoderKLWan")
_RATIOS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0)
"""Of a bucket's long side to its short one."""
_LATENT_ALONE = ("STABLE_DIFFUSION_1", "STABLE_DIFFUSION_2", "PIXART", "SANA")
"""How architectures are called whose files hold the latent and no sizes."""
_NAME = re.compile(r"image/[0-9a-f]{64}/variation-\d+/\d+\.pt")


@cache
def _buckets(side: int, step: int) -> tuple[Size, ...]:
    """(width, height) near a square's area, in the order in which the trainer looks for the nearest."""
    wide = [(1.0 / sqrt(ratio) * side, ratio / sqrt(ratio) * side) for ratio in _RATIOS]
    sizes = [*wide, *((width, height) for height, width in wide)]
    rounded = {(round(height / step) * step, round(width / step) * step) for height, width in sizes}
    return tuple((width, height) for height, width in rounded)  # in the order of Python's sets, which the trainer has


def _bucket(size: Size, wish: Wish) -> Size:
    width, height = wish.resolution
    if not wish.buckets.on:
        return wish.resolution
    if width != height:
        return round(width / wish.step) * wish.step, round(height / wish.step) * wish.step
    ratio = size[1] / size[0]
    found = _buckets(width, wish.step)
    if any(0 in one for one in found):
        raise ValueError(f"{width} is too small a resolution for OneTrainer's buckets of this architecture")
    return min(found, key=lambda one: abs(one[1] / one[0] - ratio))


def _frame(size: Size, wish: Wish) -> Framing:
    bucket = _bucket(size, wish)
    if size[1] / size[0] > bucket[1] / bucket[0]:
        resized = bucket[0], round(size[1] * (bucket[0] / size[0]))
    else:
        resized = round(size[0] * (bucket[1] / size[1])), bucket[1]
    left, top = (resized[0] - bucket[0]) // 2, (resized[1] - bucket[1]) // 2
    return Framing(resized, (left, top, *bucket), "smooth")


def _contents(subject: Subject, latents: Latents) -> list[Stored]:
    (value,) = latents
    one, framing = subject.architecture, subject.framing
    values: dict[str, Any] = {"latent_image": value if one.timed else value[:, 0]}
    if not one.name.startswith(_LATENT_ALONE):
        width, height = subject.size
        values["original_resolution"] = (1, height, width) if one.timed else (height, width)
        values["crop_offset"] = (framing.crop[1], framing.crop[0])
    return [Pickled(values)]


def _entry(place: PurePosixPath, texts: Mapping[str, str]) -> Entry | None:
    return Entry(place.parent, None) if _NAME.fullmatch(place.as_posix()) else None


def _made(
    name: str,
    classes: tuple[str, ...],
    channels: int,
    constants: tuple[float, float] | None = None,
    *,
    step: int = 64,
    factor: int = 8,
    overflows: bool = False,
) -> Architecture:
    return Architecture(
        name,
        classes,
        channels,
        factor,
        "raw",
        "mean",
        (512, 512),
        step=step,
        constants=constants,
        timed=classes is _QWEN,
        overflows=overflows,
    )


_SD, _SDXL, _SD3, _FLUX = (0.18215, 0.0), (0.13025, 0.0), (1.5305, 0.0609), (0.3611, 0.1159)
_PAINTED = "its cache holds masks and conditioning images, which tvae does not make"
_EFFNET = "it is trained on what an EfficientNet gives, not a VAE"

TRAINER = Trainer(
    name="onetrainer",
    code="Nerogar/OneTrainer 23df3832e8f213d64c337e39f9365ba46e99fed0",
    architectures=(
        *(_made(f"STABLE_DIFFUSION_{name}", _KL, 4, _SD, step=8) for name in ("15", "20", "20_BASE", "21", "21_BASE")),
        _made("STABLE_DIFFUSION_XL_10_BASE", _KL, 4, _SDXL, overflows=True),
        *(_made(name, _KL, 16, _SD3) for name in ("STABLE_DIFFUSION_3", "STABLE_DIFFUSION_35")),
        _made("PIXART_ALPHA", _KL, 4, _SD, step=16),
        _made("PIXART_SIGMA", _KL, 4, _SDXL, step=16),
        *(_made(name, _KL, 16, _FLUX) for name in ("FLUX_DEV_1", "CHROMA_1", "HI_DREAM_FULL", "Z_IMAGE")),
        *(_made(name, _FLUX2, 32) for name in ("FLUX_2", "ERNIE", "IDEOGRAM_4")),
        *(_made(name, _QWEN, 16) for name in ("QWEN", "ANIMA", "KREA_2")),
        _made("SANA", _DC, 32, step=32, factor=32, overflows=True),
    ),
    refused={
        **dict.fromkeys(
            (
                "STABLE_DIFFUSION_15_INPAINTING",
                "STABLE_DIFFUSION_20_INPAINTING",
                "STABLE_DIFFUSION_XL_10_BASE_INPAINTING",
                "FLUX_FILL_DEV_1",
            ),
            _PAINTED,
        ),
        "STABLE_DIFFUSION_20_DEPTH": "its cache holds maps of depth, which tvae does not make",
        "WUERSTCHEN_2": _EFFNET,
        "STABLE_CASCADE_1": _EFFNET,
        "HUNYUAN_VIDEO": "OneTrainer encodes it in overlapping tiles, whose blended latents tvae does not make",
    },
    frame=_frame,
    files=lambda subject: [subject.source],
    contents=_contents,
    entry=_entry,
    values=lambda tensors: [],
    upright=("image",),
    square=True,
    enlarges=True,
    notes=(
        "set in OneTrainer: the cache directory to the output folder, latent caching on, and clear cache before "
        "training off",
    ),
    failed_note="folders of concepts where an image has failed do not count as complete, and OneTrainer would make "
    "them again: mend or remove the images, and run tvae again",
)
