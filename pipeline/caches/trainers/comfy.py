"""ComfyUI: ``{stem}.latent``, as its node SaveLatent writes it and LoadLatent reads it from ComfyUI's input folder.

Read at commits 01094316268cab9ed5cd53b825b359a7becb9d6c (its built-in nodes) and
040a3243468ecefd1f2802592d90458f1ce4d65f (``comfy/latent_formats``: which latents are scaled by the diffusion model, and
so raw in a file). Since 9093301a49a90b654a7f37f6f621784b78579e2d (June 2025) it encodes to the mean, before to a
sample.

A safetensors file with ``latent_tensor``, [1, C, h, w] or, of a video VAE, [1, C, F, h, w], float32, and the empty
``latent_format_version_0``. With buckets, which are the default, images keep their size and are cut to a multiple of 8
pixels in the middle; with ``--buckets off`` they are scaled to cover the size that was asked for.
"""

from __future__ import annotations

from pathlib import PurePosixPath

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
)
from tvae.pipeline.files.stored import Stored, Tensors

__all__ = ["TRAINER"]

_RESOLUTION = (1024, 1024)
_VERSION = "latent_format_version_0"


def _frame(size: Size, settings: BucketSettings) -> Framing:
    if not settings.buckets.on:
        return covering(size, settings.resolution)
    width, height = floored(size[0], settings.step), floored(size[1], settings.step)
    if min(width, height) == 0:
        raise ValueError(f"{size[0]}x{size[1]} is smaller than {settings.step} pixels")
    return Framing(size, ((size[0] - width) // 2, (size[1] - height) // 2, width, height), "area")


def _files(subject: Subject) -> list[PurePosixPath]:
    return [subject.source.with_suffix(".latent")]


def _contents(subject: Subject, latents: Latents) -> list[Stored]:
    import torch

    (value,) = latents
    value = value[:, 0] if subject.architecture.name == "kl" else value
    return [Tensors({"latent_tensor": value.unsqueeze(0).contiguous(), _VERSION: torch.tensor([])})]


TRAINER = Trainer(
    name="comfy",
    code="comfyanonymous/ComfyUI 01094316268cab9ed5cd53b825b359a7becb9d6c",
    architectures=(
        Architecture("kl", ("AutoencoderKL",), None, 8, "raw", "mean", _RESOLUTION, "float32", step=8),
        Architecture(
            "wan",
            ("AutoencoderKLWan", "AutoencoderKLQwenImage"),
            16,
            8,
            "raw",
            "mean",
            _RESOLUTION,
            "float32",
            step=8,
            clips=True,
        ),
    ),
    frame=_frame,
    files=_files,
    contents=_contents,
    is_entry=lambda place: place.suffix == ".latent",
    upright=("image", "video"),
    one_piece=True,
)
