"""Decoded frames from ComfyUI's latents into a video file, each written as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.errors import InputError
from tvae.pipeline.media.pixels import check_finite
from tvae.pipeline.media.spec import Frame, PictureSpec, WriteOptions
from tvae.pipeline.media.writers import open_writer

__all__ = ["write_video"]


def write_video(
    frames: Iterator[Tensor],
    named: Callable[[int, int], Path],
    fps: float,
    crf: float,
    written: Callable[[], None],
) -> Path:
    """Write frames [H, W, 3] in [0, 1] at a constant rate. The file is complete under its name, or absent.

    named: width and height -> where. written: called after each frame; what it raises stops the work. Raises
    InputError for no frames and for values that are not finite, OutputError where the disk fails.
    """
    first = next(frames, None)
    if first is None:
        raise InputError("there are no frames to write; check the latents")
    rate = Fraction(fps).limit_denominator(1001)
    height, width = first.shape[:2]
    path = named(width, height)
    spec = PictureSpec(width, height, time_base=1 / rate, frame_rate=rate)
    with open_writer(path, spec, WriteOptions(crf=crf)) as writer:
        for n, frame in enumerate(chain([first], frames)):
            writer.write(Frame(_levels(frame), n, 1))
            written()
        writer.commit()
    return path


def _levels(frame: Tensor) -> Any:
    """uint8, rounded half to even."""
    values = frame.to(torch.float32)
    check_finite(torch.isfinite(values).all())
    return values.clamp(0, 1).mul(255).round().to(torch.uint8).cpu().numpy()
