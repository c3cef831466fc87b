"""kohya-ss/sd-scripts: ``{stem}_{W:04d}x{H:04d}_{architecture}.npz`` beside the image, W x H of the image itself.

Read at commit 48d368fa557731ad0488c07304dfeba8c07910eb: the classes of latents caching strategies in ``library``, the
bucket manager of ``train_util``, the list of bucket sizes of ``model_util``.

float32 arrays: ``latents`` [C, h, w], with --flip ``latents_flipped``, the encoding of the mirrored image;
``original_size`` (W, H); ``crop_ltrb``, where the picture would lie in its bucket if it were scaled to fit; with
--alpha-mask ``alpha_mask`` [H, W] of the bucket's pixels from 0 to 1, never mirrored (kohya turns it when it reads),
and no such key without, which its older check refuses. All but SD and SDXL add ``_{h}x{w}`` in latents to every name.
Latents are a sample (Anima: the mean); of SD, SDXL, SD 3 and HunyuanImage raw, of the others in model space.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import numpy as np

from tvae.pipeline.caches.spec import (
    Architecture,
    BucketSettings,
    Filter,
    Framing,
    Latents,
    Size,
    Subject,
    Trainer,
    floored,
    nearest,
)
from tvae.pipeline.files.stored import Arrays, Stored

__all__ = ["TRAINER"]

_SMALLEST, _LARGEST = 256, 1024
_KL, _QWEN = ("AutoencoderKL",), ("AutoencoderKLQwenImage", "AutoencoderKLWan")
_NAME = re.compile(r".+_\d{4,}x\d{4,}_[a-z0-9]+\.npz", re.ASCII)


def _sizes(area: int, settings: BucketSettings) -> list[Size]:
    """Return all buckets in order: every width from the smallest side up, and the height that fills the area."""
    step, side = settings.step, int(area**0.5)
    smallest = floored(settings.buckets.smallest or _SMALLEST, step)
    largest = settings.buckets.largest or _LARGEST
    largest += -largest % step
    found = {(floored(side, step),) * 2}
    for width in range(smallest, largest + 1, step):
        height = min(largest, floored(area // width, step)) if width else 0
        if height >= smallest:
            found |= {(width, height), (height, width)}
    return sorted(size for size in found if min(size) > 0)


def _frame(size: Size, settings: BucketSettings) -> Framing:
    width, height = size
    area = settings.resolution[0] * settings.resolution[1]
    if settings.buckets.on and not settings.upscale:
        resized = _shrunk(size, area, settings.step)
        bucket = floored(resized[0], settings.step), floored(resized[1], settings.step)
    else:
        sizes = _sizes(area, settings) if settings.buckets.on else [settings.resolution]
        bucket = size if size in sizes else nearest(sizes, size)
        tall = width / height > bucket[0] / bucket[1]
        scale = bucket[1] / height if tall else bucket[0] / width
        resized = int(width * scale + 0.5), int(height * scale + 0.5)
    if min(bucket) == 0:
        raise ValueError(f"{width}x{height} is smaller than a bucket's step of {settings.step} pixels")
    left, top = (resized[0] - bucket[0]) // 2, (resized[1] - bucket[1]) // 2
    smaller = width >= resized[0] and height >= resized[1]
    kind: Filter = "area" if smaller else "lanczos"
    return Framing(resized, (left, top, *bucket), kind)


def _shrunk(size: Size, area: int, step: int) -> Size:
    """Return the size of an image that is not enlarged: at most the area, one side a multiple of the step."""
    width, height = size
    if width * height <= area:
        return size
    ratio = width / height
    wide = (area * ratio) ** 0.5
    by_width = floored(int(wide + 0.5), step)
    by_height = floored(int(area / wide + 0.5), step)
    other_height = floored(int(by_width / ratio + 0.5), step)
    other_width = floored(int(by_height * ratio + 0.5), step)
    if 0 in (by_height, other_height):
        raise ValueError(f"{width}x{height} is too long and narrow for buckets of this area")
    if abs(by_width / other_height - ratio) < abs(other_width / by_height - ratio):
        return by_width, int(by_width / ratio + 0.5)
    return int(by_height * ratio + 0.5), by_height


def _crop_ltrb(bucket: Size, size: Size) -> np.ndarray:
    """Return left, top, right and bottom of the picture scaled to fit into the middle of its bucket."""
    ratio = size[0] / size[1]
    if bucket[0] / bucket[1] > ratio:
        fitted: tuple[float, float] = (bucket[1] * ratio, bucket[1])
    else:
        fitted = (bucket[0], bucket[0] / ratio)
    left, top = (bucket[0] - fitted[0]) // 2, (bucket[1] - fitted[1]) // 2
    return np.array((left, top, left + fitted[0], top + fitted[1]))


def _files(subject: Subject) -> list[PurePosixPath]:
    width, height = subject.size
    name = f"{subject.source.stem}_{width:04d}x{height:04d}_{subject.architecture.name}.npz"
    return [subject.source.with_name(name)]


def _contents(subject: Subject, latents: Latents) -> list[Stored]:
    arrays = [one[:, 0].float().numpy() for one in latents]
    height, width = arrays[0].shape[-2:]
    end = "" if subject.architecture.name in ("sd", "sdxl") else f"_{height}x{width}"
    found = {
        f"latents{end}": arrays[0],
        f"original_size{end}": np.array(subject.size),
        f"crop_ltrb{end}": _crop_ltrb(subject.framing.size, subject.size),
    }
    if subject.flip:
        found[f"latents_flipped{end}"] = arrays[1]
    if subject.alpha is not None:
        found[f"alpha_mask{end}"] = subject.alpha.astype(np.float32) / np.float32(255)
    return [Arrays(found)]


TRAINER = Trainer(
    name="kohya",
    code="kohya-ss/sd-scripts 48d368fa557731ad0488c07304dfeba8c07910eb",
    architectures=(
        Architecture("sd", _KL, 4, 8, "raw", "sample", (512, 512), "float32", constants=(0.18215, 0.0)),
        Architecture("sdxl", _KL, 4, 8, "raw", "sample", (1024, 1024), "float32", constants=(0.13025, 0.0)),
        Architecture("sd3", _KL, 16, 8, "raw", "sample", (1024, 1024), "float32", constants=(1.5305, 0.0609)),
        Architecture("flux", _KL, 16, 8, "model", "sample", (1024, 1024), "float32", constants=(0.3611, 0.1159)),
        Architecture("lumina", _KL, 16, 8, "model", "sample", (1024, 1024), "float32", constants=(0.3611, 0.1159)),
        Architecture("hi", ("AutoencoderKLHunyuanImage",), 64, 32, "raw", "sample", (1024, 1024), "float32"),
        Architecture("anima", _QWEN, 16, 8, "model", "mean", (1024, 1024), "float32", revision=1),
    ),
    frame=_frame,
    files=_files,
    contents=_contents,
    is_entry=lambda place: _NAME.fullmatch(place.name) is not None,
    flips=True,
    alpha_masks=True,
    ranges=True,
    beside=True,
    notes=("the cache holds one resolution of each image: another --size replaces it",),
)
