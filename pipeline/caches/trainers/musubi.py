"""kohya-ss/musubi-tuner: ``{stem}_{W:04d}x{H:04d}_{architecture}.safetensors`` in its cache directory, W x H of the
image itself. A piece of a video has ``_{start:05d}-{frames:03d}`` behind the stem.

Read at commit 30c658c4f4b0bf05038b3346eff9670259b10fc7: ``dataset/cache_io``, ``dataset/bucket``,
``dataset/media_utils``, ``dataset/image_video_dataset``, and the programs ``*_cache_latents``.

One tensor ``latents_{F}x{H}x{W}_{type}`` in latents, [C, F, H, W]; of FLUX.2 ``latents_{H}x{W}_{type}``, and of it,
Z-Image and Ideogram [C, H, W]. Kandinsky 5 has the first and last latent frame beside it. Left out are architectures
whose cache holds more than a VAE gives (FramePack, FLUX Kontext, Qwen-Image-Edit and -Layered, image to video).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from tvae.pipeline.caches.buckets import covering, floored, nearest
from tvae.pipeline.caches.spec import Architecture, Entry, Framing, Latents, Size, Subject, Trainer, Wish, timed
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
_NAME = re.compile(r"(.+?)(?:_(\d{5,})-(\d{3,}))?_(\d{4,})x(\d{4,})_([a-z0-9]+)\.safetensors", re.ASCII)
_KEY = re.compile(r"latents_(\d+x)?\d+x\d+_[a-z]+\d+", re.ASCII)


def _sizes(area: int, step: int) -> list[Size]:
    """All buckets, in order: widths from half the square's side to the whole, each with the height that fills the
    area, and the other way round."""
    side = int(area**0.5)
    found = set()
    for width in range(floored(side // 2, step), side + step, step):
        height = floored(area // width, step) if width else 0
        found |= {(width, height), (height, width)}
    return sorted(size for size in found if min(size) > 0)


def _frame(size: Size, wish: Wish) -> Framing:
    area, step = wish.resolution[0] * wish.resolution[1], wish.architecture.step
    if not wish.buckets.on:
        bucket = wish.resolution
    elif not wish.upscale and size[0] * size[1] <= area:
        bucket = floored(size[0], step), floored(size[1], step)
    else:
        bucket = nearest(_sizes(area, step), size)
    if min(bucket) == 0:
        raise ValueError(f"{size[0]}x{size[1]} is smaller than a bucket's step of {step} pixels")
    return covering(size, bucket)


def _files(subject: Subject) -> list[PurePosixPath]:
    (width, height), piece = subject.size, subject.piece
    cut = "" if piece is None else f"_{piece.start:05d}-{piece.frames:03d}"
    name = f"{subject.source.stem}{cut}_{width:04d}x{height:04d}_{subject.architecture.name}.safetensors"
    return [subject.source.with_name(name)]


def _contents(subject: Subject, latents: Latents) -> list[Stored]:
    import torch

    (value,) = latents
    architecture = subject.architecture
    kind = str(value.dtype).removeprefix("torch.")
    frames, height, width = value.shape[1:]
    size = f"{height}x{width}" if architecture.name in _FLAT[:3] else f"{frames}x{height}x{width}"
    tensors = {f"latents_{size}_{kind}": value[:, 0] if architecture.name in _FLAT else value}
    if architecture.name == "k5":
        tensors[f"latents_image_2x{height}x{width}_{kind}"] = torch.cat([value[:, :1], value[:, -1:]], 1)
    texts = {
        "architecture": architecture.label,
        "width": str(subject.size[0]),
        "height": str(subject.size[1]),
        "format_version": "1.0.1",
    }
    if subject.piece is not None:
        texts["frame_count"] = str(subject.piece.frames)
    return [Tensors({name: tensor.contiguous() for name, tensor in tensors.items()}, texts)]


def _entry(place: PurePosixPath, texts: Mapping[str, str]) -> Entry | None:
    found = _NAME.fullmatch(place.name)
    if found is None:
        return None
    frames = None if found[2] is None else (int(found[2]), int(found[3]))
    return Entry(place.parent, found[1], found[6], (int(found[4]), int(found[5])), frames)


def _values(tensors: Mapping[str, Tensor]) -> list[Latents]:
    return [[timed(one)] for name, one in tensors.items() if _KEY.fullmatch(name)]


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
) -> Architecture:
    return Architecture(
        name, classes, channels, factor, space, posterior, _RESOLUTION, dtype, 16, constants, clips=clips, label=label
    )


TRAINER = Trainer(
    name="musubi",
    code="kohya-ss/musubi-tuner 30c658c4f4b0bf05038b3346eff9670259b10fc7",
    architectures=(
        _made("hv", "hunyuan_video", _HUNYUAN, 16, 8, "raw", "sample", "float16", True),
        _made("wan", "wan", ("AutoencoderKLWan",), 16, 8, "model", "mean", "bfloat16", True),
        _made("f2d", "flux_2_dev", _FLUX2, 32, 8, "model", "mean", "float32"),
        _made("f2k4b", "flux_2_klein_4b", _FLUX2, 32, 8, "model", "mean", "float32"),
        _made("f2k9b", "flux_2_klein_9b", _FLUX2, 32, 8, "model", "mean", "float32"),
        _made("qi", "qwen_image", _QWEN, 16, 8, "model", "mean", "bfloat16"),
        _made("kr2", "krea2", _QWEN, 16, 8, "model", "mean", "bfloat16"),
        _made("k5", "kandinsky5", _HUNYUAN, 16, 8, "model", "sample", "float16", True),
        _made("hv15", "hunyuan_video_1_5", ("AutoencoderKLHunyuanVideo15",), 32, 16, "raw", "mean", "float16", True),
        _made("zi", "z_image", ("AutoencoderKL",), 16, 8, "raw", "mean", "float32", constants=(0.3611, 0.1159)),
        _made("i4", "ideogram4", _FLUX2, 32, 8, "model", "mean", "bfloat16"),
    ),
    frame=_frame,
    files=_files,
    contents=_contents,
    entry=_entry,
    values=_values,
    apart=True,
    notes=(
        "set resolution, enable_bucket and bucket_no_upscale in musubi-tuner's dataset configuration as here, and "
        "cache_directory to the output folder",
    ),
)
