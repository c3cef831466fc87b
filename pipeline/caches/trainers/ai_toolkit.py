"""ostris/ai-toolkit: ``_latent_cache/{stem}_{hash}.safetensors`` beside the image, with one tensor ``latent``.

Read at commit 27a03a91f23eb1b757d5ec2e80ee3e129cfcc350: ``toolkit/dataloader_mixins`` (buckets, caching of latents),
``toolkit/buckets``, ``toolkit/data_loader``, and ``encode_images`` of the models.

The hash is of what the latents depend on: the file's name, scaling, crop, architecture, mirroring. Latents are a
sample in model space, [C, h, w]; Wan's [C, 1, h, w]. FLUX.2's are the mean. A mirrored image is a file of its own, and
is mirrored before it is scaled and cut.
Images are turned as their orientation says, enlarged by a step at most, and scaled bicubically. Videos are left out:
ai-toolkit draws lots for the frame that they begin with.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from pathlib import PurePosixPath
from typing import Any

from tvae.pipeline.caches.spec import Architecture, BucketSettings, Framing, Latents, Size, Subject, Trainer
from tvae.pipeline.files.stored import Stored, Tensors

__all__ = ["TRAINER"]

_KL, _FLUX2 = ("AutoencoderKL",), ("AutoencoderKLFlux2",)
_QWEN = ("AutoencoderKLQwenImage", "AutoencoderKLWan")
_RESOLUTION = (1024, 1024)
_FOLDER = "_latent_cache"
_NAME = re.compile(r".*_[\w-]{22}\.safetensors", re.ASCII | re.DOTALL)
"""A stem, and an MD5 digest as URL-safe Base64."""


def _frame(size: Size, settings: BucketSettings) -> Framing:
    width, height = size
    most, step = settings.resolution[0] * settings.resolution[1], settings.step
    if settings.buckets.on:
        target = min(width * height, most)
        scale = (target / (width * height)) ** 0.5
        exact = width * scale / step, height * scale / step
        ways = [[math.floor(side) * step, math.ceil(side) * step] for side in exact]
        fitting = [(w, h) for w in ways[0] for h in ways[1] if w > 0 and h > 0 and w * h <= most]
        least = (max(step, ways[0][0]), max(step, ways[1][0]))
        bucket = min(fitting or [least], key=lambda one: abs(one[0] * one[1] - target))
    else:
        bucket = settings.resolution
    scale = max(bucket[0] / width, bucket[1] / height)
    resized = math.ceil(width * scale), math.ceil(height * scale)
    left, top = int((resized[0] - bucket[0]) / 2), int((resized[1] - bucket[1]) / 2)
    return Framing(resized, (left, top, *bucket), "bicubic")


def _facts(subject: Subject, flipped: bool) -> dict[str, Any]:
    """Return what the hash in a file's name is made of."""
    (left, top, width, height), resized = subject.framing.crop, subject.framing.resized
    found: dict[str, Any] = {
        "filename": subject.source.name,
        "scale_to_width": resized[0],
        "scale_to_height": resized[1],
        "crop_x": left,
        "crop_y": top,
        "crop_width": width,
        "crop_height": height,
        "latent_space_version": subject.architecture.label or subject.architecture.name,
        "latent_version": 1,
    }
    return found | ({"flip_x": True} if flipped else {})


def _folder(source: PurePosixPath) -> PurePosixPath:
    return source.parent / _FOLDER


def _files(subject: Subject) -> list[PurePosixPath]:
    found = []
    for flipped in (False, True) if subject.flip else (False,):
        text = json.dumps(_facts(subject, flipped), sort_keys=True).encode()
        digest = hashlib.md5(text, usedforsecurity=False).digest()
        name = f"{subject.source.stem}_{base64.urlsafe_b64encode(digest).decode().rstrip('=')}.safetensors"
        found.append(_folder(subject.source) / name)
    return found


def _contents(subject: Subject, latents: Latents) -> list[Stored]:
    found: list[Stored] = []
    for flipped, value in zip((False, True), latents, strict=False):
        facts = _facts(subject, flipped)
        texts = {name: fact if isinstance(fact, str) else json.dumps(fact) for name, fact in facts.items()}
        tensor = value if subject.architecture.name.startswith("wan") else value[:, 0]
        found.append(Tensors({"latent": tensor.contiguous()}, {**texts, "format": "pt"}))
    return found


def _is_entry(place: PurePosixPath) -> bool:
    return place.parent.name == _FOLDER and _NAME.fullmatch(place.name) is not None


TRAINER = Trainer(
    name="ai-toolkit",
    code="ostris/ai-toolkit 27a03a91f23eb1b757d5ec2e80ee3e129cfcc350",
    architectures=(
        Architecture("sd1", _KL, 4, 8, "model", "sample", (512, 512), step=16, constants=(0.18215, 0.0)),
        Architecture("sdxl", _KL, 4, 8, "model", "sample", _RESOLUTION, step=16, constants=(0.13025, 0.0)),
        Architecture("sd3", _KL, 16, 8, "model", "sample", _RESOLUTION, step=32, constants=(1.5305, 0.0609)),
        Architecture(
            "flux", _KL, 16, 8, "model", "sample", _RESOLUTION, step=32, constants=(0.3611, 0.1159), label="flux1"
        ),
        Architecture("zimage", _KL, 16, 8, "model", "sample", _RESOLUTION, step=16, constants=(0.3611, 0.1159)),
        Architecture("wan21", ("AutoencoderKLWan",), 16, 8, "model", "sample", _RESOLUTION, step=16),
        Architecture("wan22_14b", ("AutoencoderKLWan",), 16, 8, "model", "sample", _RESOLUTION, step=16),
        Architecture("qwen_image", _QWEN, 16, 8, "model", "sample", _RESOLUTION, step=32),
        Architecture("krea2", _QWEN, 16, 8, "model", "sample", _RESOLUTION, step=16),
        Architecture("flux2", _FLUX2, 32, 8, "model", "mean", _RESOLUTION, step=16),
        Architecture("flux2_klein_4b", _FLUX2, 32, 8, "model", "mean", _RESOLUTION, step=16),
        Architecture("flux2_klein_9b", _FLUX2, 32, 8, "model", "mean", _RESOLUTION, step=16),
    ),
    frame=_frame,
    files=_files,
    contents=_contents,
    is_entry=_is_entry,
    folder=_folder,
    upright=("image",),
    flips=True,
    mirrors_first=True,
    beside=True,
    square=True,
)
