"""bghira/SimpleTuner: ``{place}/{sha256 of the stem}.pt`` in its ``cache_dir_vae``, a bare tensor.

Read at commit bc8e6ab7738ce457a2ed8eb2d26cadd91c6442cb: ``helpers/caching/vae``, ``helpers/image_manipulation``,
``helpers/multiaspect/image``, ``helpers/data_backend/local``, ``helpers/training/collate``, ``encode_with_vae``,
``post_vae_encode_transform_sample`` and ``scale_vae_latents_for_cache`` of the models.

Latents are in model space, [C, h, w]; Anima's [C, 1, h, w], Sana's raw. They are a sample, but for those whose model
takes the mean. SimpleTuner finds out once how it scales and crops an image, and keeps that in a database of its own: it
comes to the same only if nothing is left to chance (``crop_style``), and in areas (``pixel_area``). Images are not
turned, and scaled linearly; not to a bucket, but until they cover one.

Where two sizes round to one ratio, SimpleTuner gives images of this ratio the size that it meets first. Images whose
own size is not that of the ratio itself are refused. It decodes JPEGs as no other trainer does, and scales several
images at once in another way, which is not made; see the folder's README.
Left out: videos, models whose VAE gets other pixels or is tiled (``refused``), whose canvas is limited (HiDream) or
whose VAE is not of diffusers.
"""

from __future__ import annotations

import hashlib
import re
from math import sqrt
from pathlib import PurePosixPath
from typing import Literal

from tvae.pipeline.caches.spec import Architecture, BucketSettings, Framing, Latents, Size, Subject, Trainer
from tvae.pipeline.files.stored import Pickled, Stored

__all__ = ["TRAINER"]

_KL, _FLUX2 = ("AutoencoderKL",), ("AutoencoderKLFlux2",)
_QWEN = ("AutoencoderKLQwenImage", "AutoencoderKLWan")
_AREAS = {0.25: 512, 0.5: 768, 1.0: 1024, 2.0: 1536, 4.0: 2048}
"""Megapixels that stand for a square with such a side."""
_NEAR = 0.05
_NAME = re.compile(r"[0-9a-f]{64}\.pt")


def _rounded(value: float, step: int) -> int:
    return max(round(value / step) * step, step)


def _ratio(size: Size) -> float:
    return round(size[0] / size[1], 2)


def _bucket(ratio: float, edge: int, step: int) -> Size:
    return _rounded(edge * sqrt(ratio), step), _rounded(edge / sqrt(ratio), step)


def _covering(size: Size, bucket: Size) -> Size:
    """Return the size of an image that covers a bucket, in whole pixels below the exact one."""
    exact = size[0] / size[1]
    if bucket[0] < bucket[1]:
        width, height = bucket[0], int(bucket[0] / exact)
    else:
        width, height = int(bucket[1] * exact), bucket[1]
    if bucket[0] > width:
        more = bucket[0] - width
        return width + more, height + int(more / exact)
    if bucket[1] > height:
        more = bucket[1] - height
        return width + int(more * exact), height + more
    return width, height


def _frame(size: Size, settings: BucketSettings) -> Framing:
    megapixels, step = settings.resolution[0] ** 2 / 1e6, settings.step
    edge = _rounded(int(sqrt(megapixels * 1e6)), step)
    named = next((side**2 for area, side in _AREAS.items() if abs(megapixels - area) < _NEAR), megapixels * 1e6)
    square = _rounded(sqrt(named), step)
    ratio = _ratio(size) if settings.buckets.on else 1.0
    if ratio == 0:
        raise ValueError(f"{size[0]}x{size[1]} is too tall for SimpleTuner, which rounds its ratio to 0")
    if ratio == 1 and size[0] == size[1]:
        bucket = resized = edge, edge
    else:
        bucket = _bucket(ratio, edge, step)
        resized = _covering(size, bucket)
    final = _ratio(bucket)
    if final == 1:
        bucket = square, square
        resized = bucket if resized[0] < square else resized
    elif bucket != (usual := _bucket(final, edge, step)) and _ratio(usual) == final:
        raise ValueError(
            f"{size[0]}x{size[1]} would be {bucket[0]}x{bucket[1]}, and SimpleTuner gives all images of its ratio "
            f"({final}) one size, perhaps {usual[0]}x{usual[1]}"
        )
    left, top = (resized[0] - bucket[0]) // 2, (resized[1] - bucket[1]) // 2
    if min(left, top) < 0:
        raise ValueError(f"{size[0]}x{size[1]} scaled is smaller than {bucket[0]}x{bucket[1]}")
    return Framing(resized, (left, top, *bucket), "linear")


def _files(subject: Subject) -> list[PurePosixPath]:
    return [subject.source.with_name(hashlib.sha256(subject.source.stem.encode()).hexdigest() + ".pt")]


def _contents(subject: Subject, latents: Latents) -> list[Stored]:
    (value,) = latents
    return [Pickled(value if subject.architecture.name == "anima" else value[:, 0])]


def _made(
    name: str,
    classes: tuple[str, ...],
    channels: int,
    *,
    step: int = 64,
    factor: int = 8,
    posterior: Literal["mean", "sample"] = "sample",
    space: Literal["raw", "model"] = "model",
    constants: tuple[float, float] | None = None,
) -> Architecture:
    return Architecture(
        name,
        classes,
        channels,
        factor,
        space,
        posterior,
        (1024, 1024),
        "bfloat16",
        step,
        constants=constants,
        revision=1,  # colours were converted from ICC profiles before
    )


_SD, _SDXL, _FLUX = (0.18215, 0.0), (0.13025, 0.0), (0.3611, 0.1159)

TRAINER = Trainer(
    name="simpletuner",
    code="bghira/SimpleTuner bc8e6ab7738ce457a2ed8eb2d26cadd91c6442cb",
    architectures=(
        *(_made(name, _KL, 4, constants=_SD) for name in ("sd1x", "sd2x")),
        *(_made(name, _KL, 4, constants=_SDXL) for name in ("sdxl", "kolors", "auraflow", "pixart_sigma", "omnigen")),
        _made("sd3", _KL, 16, constants=(1.5305, 0.0609)),
        *(
            _made(name, _KL, 16, constants=_FLUX)
            for name in ("flux", "chroma", "lumina2", "z_image", "longcat_image", "kandinsky5-image")
        ),
        _made("flux2", _FLUX2, 32, step=16, posterior="mean"),
        _made("ernie", _FLUX2, 32, posterior="mean"),
        _made("qwen_image", _QWEN, 16, step=32),
        _made("krea2", _QWEN, 16),
        _made("anima", _QWEN, 16, step=16, posterior="mean"),
        _made("sana", ("AutoencoderDC",), 32, factor=32, posterior="mean", space="raw"),
    ),
    refused={
        "wan": "SimpleTuner encodes pictures of more than 256 pixels a side in overlapping tiles, whose blended "
        "latents tvae does not make",
        "wan-5b": "SimpleTuner gives the VAE the four pixels of each square in another order than diffusers",
        "cosmos2image": "SimpleTuner gives the VAE pixels from 0 to 1, where others give it those from -1 to 1",
    },
    frame=_frame,
    files=_files,
    contents=_contents,
    is_entry=lambda place: _NAME.fullmatch(place.name) is not None,
    decoder="trainingsample",
    square=True,
    enlarges=True,
    notes=(
        "set in SimpleTuner's data backend: cache_dir_vae to the output folder, resolution_type pixel_area, crop true, "
        "crop_style center, and crop_aspect preserve (with --buckets off: square)",
    ),
)
