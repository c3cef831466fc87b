"""Lightricks/LTX-2, its ltx-trainer: ``latents/{place}.pt``, one file an image or video.

Read at commit 400fd31054597515f47125691032c04b1c3ee24e: ``scripts/process_videos`` and
``datasets`` of ltx-trainer, and the encoder of ltx-core.

``latents``: the mean in model space, [128, F, h, w], bfloat16; ``num_frames``, ``height`` and ``width`` of the latents;
``fps`` of the frames, 1.0 for an image. Images are what is called .png, .jpg or .jpeg: its program reads all else as a
video, and stops at one of a single frame. They are scaled bicubically, as floats, to cover the one size that was asked
for. The trainer's own list of several sizes is left out: name one size a run. So are the latents of sound, which
another model makes.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from tvae.pipeline.caches.spec import Architecture, BucketSettings, Framing, Latents, Size, Subject, Trainer
from tvae.pipeline.files.stored import Pickled, Stored

__all__ = ["TRAINER"]

_FOLDER = "latents"


def _frame(size: Size, settings: BucketSettings) -> Framing:
    width, height = size
    bucket = settings.resolution
    if width / height > bucket[0] / bucket[1]:
        resized = int(width * bucket[1] / height), bucket[1]
    else:
        resized = bucket[0], int(height * bucket[0] / width)
    left, top = (resized[0] - bucket[0]) // 2, (resized[1] - bucket[1]) // 2
    if min(left, top) < 0:  # cut by the rounding
        raise ValueError(f"{width}x{height} scaled is a pixel smaller than {bucket[0]}x{bucket[1]}")
    return Framing(resized, (left, top, *bucket), "cubic")


def _folder(source: PurePosixPath) -> PurePosixPath:
    return _FOLDER / source.parent


def _files(subject: Subject) -> list[PurePosixPath]:
    return [_folder(subject.source) / subject.source.with_suffix(".pt").name]


def _contents(subject: Subject, latents: Latents) -> list[Stored]:
    (value,) = latents
    frames, height, width = value.shape[1:]
    fps = 1.0 if subject.piece is None else subject.piece.fps
    return [Pickled({"latents": value, "num_frames": frames, "height": height, "width": width, "fps": fps})]


TRAINER = Trainer(
    name="ltx",
    code="Lightricks/LTX-2 400fd31054597515f47125691032c04b1c3ee24e",
    architectures=(
        Architecture(
            "ltx2",
            ("AutoencoderKLLTX2Video",),
            128,
            32,
            "model",
            "mean",
            (768, 768),
            "bfloat16",
            step=32,
            clips=True,
            revision=1,
        ),
    ),
    frame=_frame,
    files=_files,
    contents=_contents,
    is_entry=lambda place: place.suffix == ".pt" and place.parts[0] == _FOLDER,
    folder=_folder,
    upright=("image",),
    image_suffixes=(".png", ".jpg", ".jpeg"),
    quick_colours=True,
    one_size=True,
    enlarges=True,
    one_piece=True,
)
