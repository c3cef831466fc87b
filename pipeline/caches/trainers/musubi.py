"""kohya-ss/musubi-tuner: ``{stem}_{W:04d}x{H:04d}_{architecture}.safetensors`` in its cache directory, W x H of the
image itself. A piece of a video has ``_{start:05d}-{frames:03d}`` after the stem, and W x H are its bucket's: videos
are scaled while they are read, always into buckets, before their size is asked for.

Read at commit 30c658c4f4b0bf05038b3346eff9670259b10fc7: ``dataset/cache_io``, ``dataset/bucket``,
``dataset/media_utils``, ``dataset/image_video_dataset``, and the programs ``*_cache_latents``.

One tensor ``latents_{F}x{H}x{W}_{type}`` in latents, [C, F, H, W]; of FLUX.2 ``latents_{H}x{W}_{type}``, and of it,
Z-Image and Ideogram [C, H, W]. Ideogram's are raw, in squares of 2x2 with the channel last in order. Left out are
architectures whose cache holds more than a VAE gives (FramePack, FLUX Kontext, Qwen-Image-Edit and -Layered, image to
video).

Kandinsky 5 always encodes in blended tiles (``kandinsky5/models/vae``, ``build_vae``: 192 pixels, 24 frames).
HunyuanVideo 1.5 does unless ``--vae_sample_size 0`` is passed (128 pixels); HunyuanVideo does on request alone.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from tvae.pipeline.caches.spec import (
    Architecture,
    BucketSettings,
    Framing,
    Latents,
    Size,
    Subject,
    Trainer,
    covering,
    floored,
    nearest,
)
from tvae.pipeline.files.stored import Stored, Tensors

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TRAINER"]

_RESOLUTION = (960, 544)
_FLUX2 = ("AutoencoderKLFlux2",)
_QWEN = ("AutoencoderKLQwenImage", "AutoencoderKLWan")
_HUNYUAN = ("AutoencoderKLHunyuanVideo",)
_FLAT = ("f2d", "f2k4b", "f2k9b", "zi", "i4")
"""Whose latents have no time."""
_NAME = re.compile(r".+_\d{4,}x\d{4,}_[a-z0-9]+\.safetensors", re.ASCII)


def _sizes(area: int, step: int) -> list[Size]:
    """Return all buckets in order: widths from half the square's side to the whole, each with the height that fills the
    area, and the other way round."""
    side = int(area**0.5)
    found = set()
    for width in range(floored(side // 2, step), side + step, step):
        height = floored(area // width, step) if width else 0
        found |= {(width, height), (height, width)}
    return sorted(size for size in found if min(size) > 0)


def _frame(size: Size, settings: BucketSettings) -> Framing:
    area, step = settings.resolution[0] * settings.resolution[1], settings.architecture.step
    if not settings.buckets.on:
        bucket = settings.resolution
    elif not settings.upscale and size[0] * size[1] <= area:
        bucket = floored(size[0], step), floored(size[1], step)
    else:
        bucket = nearest(_sizes(area, step), size)
    if min(bucket) == 0:
        raise ValueError(f"{size[0]}x{size[1]} is smaller than a bucket's step of {step} pixels")
    if settings.architecture.name == "i4" and any(side % step for side in bucket):
        raise ValueError(f"{bucket[0]}x{bucket[1]} is no multiple of {step} pixels")
    return covering(size, bucket)


def _named(subject: Subject) -> Size:
    """Return the size in a file's name."""
    return subject.size if subject.piece is None else subject.framing.size


def _files(subject: Subject) -> list[PurePosixPath]:
    (width, height), piece = _named(subject), subject.piece
    cut = "" if piece is None else f"_{piece.start:05d}-{piece.frames:03d}"
    name = f"{subject.source.stem}{cut}_{width:04d}x{height:04d}_{subject.architecture.name}.safetensors"
    return [subject.source.with_name(name)]


def _contents(subject: Subject, latents: Latents) -> list[Stored]:
    (value,) = latents
    name, (width, height) = subject.architecture.name, _named(subject)
    if name == "i4":
        value = _in_squares(value)
    kind, sides = str(value.dtype).removeprefix("torch."), "x".join(map(str, value.shape[-2:]))
    key = f"latents_{sides}_{kind}" if name in _FLAT[:3] else f"latents_{value.shape[1]}x{sides}_{kind}"
    texts = {
        "architecture": subject.architecture.label,
        "width": str(width),
        "height": str(height),
        "format_version": "1.0.1",
    }
    if subject.piece is not None:
        texts["frame_count"] = str(subject.piece.frames)
    return [Tensors({key: (value[:, 0] if name in _FLAT else value).contiguous()}, texts)]


def _in_squares(value: Tensor) -> Tensor:
    """Fold [C, 1, h, w] to [4C, 1, h/2, w/2]: all channels of a square's first place, then of the next in its row."""
    import torch

    return torch.cat([value[..., row::2, column::2] for row in (0, 1) for column in (0, 1)])


def _made(
    name: str,
    label: str,
    classes: tuple[str, ...],
    channels: int,
    factor: int,
    space: Literal["raw", "model"],
    posterior: Literal["mean", "sample"],
    dtype: str,
    clips: bool = False,
    constants: tuple[float, float] | None = None,
    revision: int = 0,
    note: str | None = None,
) -> Architecture:
    made = Architecture(name, classes, channels, factor, space, posterior, _RESOLUTION, dtype, 16, constants)
    return replace(made, clips=clips, label=label, revision=revision, note=note)


TRAINER = Trainer(
    name="musubi",
    code="kohya-ss/musubi-tuner 30c658c4f4b0bf05038b3346eff9670259b10fc7",
    architectures=(
        _made("hv", "hunyuan_video", _HUNYUAN, 16, 8, "raw", "sample", "float16", True, revision=1),
        _made("wan", "wan", ("AutoencoderKLWan",), 16, 8, "model", "mean", "bfloat16", True, revision=1),
        _made("f2d", "flux_2_dev", _FLUX2, 32, 8, "model", "mean", "float32"),
        _made("f2k4b", "flux_2_klein_4b", _FLUX2, 32, 8, "model", "mean", "float32"),
        _made("f2k9b", "flux_2_klein_9b", _FLUX2, 32, 8, "model", "mean", "float32"),
        _made("qi", "qwen_image", _QWEN, 16, 8, "model", "mean", "bfloat16"),
        _made("kr2", "krea2", _QWEN, 16, 8, "model", "mean", "bfloat16"),
        _made(
            "hv15",
            "hunyuan_video_1_5",
            ("AutoencoderKLHunyuanVideo15",),
            32,
            16,
            "raw",
            "mean",
            "float16",
            True,
            revision=1,
            note="HunyuanVideo 1.5 (hv15) is cached as musubi-tuner does with --vae_sample_size 0; without that it "
            "encodes in blended tiles",
        ),
        _made("zi", "z_image", ("AutoencoderKL",), 16, 8, "raw", "mean", "float32", constants=(0.3611, 0.1159)),
        _made("i4", "ideogram4", _FLUX2, 32, 8, "raw", "mean", "bfloat16", revision=1),
    ),
    refused={
        "k5": "musubi-tuner encodes pictures of more than 192 pixels a side and clips of more than 24 frames in "
        "overlapping tiles, whose blended latents tvae does not make",
    },
    frame=_frame,
    files=_files,
    contents=_contents,
    is_entry=lambda place: _NAME.fullmatch(place.name) is not None,
    weighs_alpha=True,
    quick_colours=True,
    apart=True,
    bucketed_clips=True,
    frame_extraction=True,
    notes=(
        "set resolution, enable_bucket and bucket_no_upscale in musubi-tuner's dataset configuration as here, and "
        "cache_directory to the output folder",
    ),
)
