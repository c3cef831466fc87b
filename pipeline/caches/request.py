"""What is asked of a cache: for which trainer, in which buckets, with which clips. Data alone, checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from tvae.pipeline.errors import UsageError
from tvae.pipeline.memory.amount import parse_size

__all__ = ["CUTS", "WEBDATASET", "Buckets", "CacheRequest", "listed"]

WEBDATASET = "webdataset"
"""The only trainer name that stands for shards."""
CUTS = "--frames, --stride, --start, --frame-sample, --max-frames and --target-fps"
"""What says something about videos alone."""


@dataclass(frozen=True)
class Buckets:
    """Sizes that images are sorted into. None: as the trainer has it where its configuration says nothing."""

    on: bool = True
    """Off: every image gets the one size that was asked for."""
    smallest: int | None = None
    largest: int | None = None
    """Of a side, in pixels."""
    step: int | None = None
    """Sides are multiples of it."""

    @classmethod
    def parse(cls, text: str) -> Buckets:
        """``on``, ``off``, ``256-2048`` or ``256-2048/64``. Raises UsageError."""
        if text in ("on", "off"):
            return cls(text == "on")
        found = re.fullmatch(r"(\d{1,6})-(\d{1,6})(?:/(\d{1,4}))?", text, re.ASCII)
        if found is None:
            raise UsageError(f"--buckets {text} is none of on, off, MIN-MAX and MIN-MAX/STEP, such as 256-2048/64")
        smallest, largest = int(found[1]), int(found[2])
        step = None if found[3] is None else int(found[3])
        if not 0 < smallest <= largest or step == 0:
            raise UsageError(f"--buckets {text}: sides grow from 1 up, MIN is at most MAX and STEP at least 1")
        return cls(True, smallest, largest, step)

    def __str__(self) -> str:
        """As ``parse`` reads it."""
        if self.smallest is None:
            return "on" if self.on else "off"
        return f"{self.smallest}-{self.largest}" + ("" if self.step is None else f"/{self.step}")


@dataclass(frozen=True)
class CacheRequest:
    """Raises UsageError for what contradicts itself. What the trainer has no room for is refused where it is known."""

    trainer: str
    architecture: str | None = None
    """Of the diffusion model, as the trainer calls it; None: the only one that the VAE suits."""
    buckets: Buckets = Buckets()
    upscale: bool = True
    """Images smaller than their bucket are enlarged to it."""
    flip: bool = False
    """Also the latents of each image mirrored left-right."""
    alpha_mask: bool = False
    """Also the alpha of each image, by which the trainer weighs its loss."""
    posterior: Literal["mean", "sample"] | None = None
    """What is stored of the encoder's distribution; None: what the trainer stores."""
    frames: tuple[int, ...] | None = None
    """Of each piece of a video, of several lengths where there are several; None: one piece, as long as the VAE takes
    it."""
    stride: tuple[int, ...] | None = None
    """Frames from the beginning of a piece to that of the next: one for all lengths, or one for each. None: one piece
    of each length."""
    start: int = 0
    """The frame that the first piece begins with."""
    target_fps: float | None = None
    """Frames a second that are kept of a faster video; None: all."""
    shards: str | None = None
    """Largest size of a shard, such as ``1GB``; None: 1 GB."""
    frame_sample: int | None = None
    """Pieces of each length, spread evenly over the video; those that begin with the same frame are one. None: as
    ``stride`` says."""
    max_frames: int | None = None
    """Of a video that is one piece, the first so many, from ``start`` on; None: all."""

    def __post_init__(self) -> None:
        if self.posterior not in (None, "mean", "sample"):
            raise UsageError(f"posterior '{self.posterior}' is not one of mean, sample")
        if self.start < 0:
            raise UsageError(f"--start {self.start} is not a frame; they are numbered from 0")
        self._check_cuts()
        if self.target_fps is not None and not 0 < self.target_fps < 1e4:
            raise UsageError(f"--target-fps {self.target_fps} is not a frame rate; it must be above 0")
        if self.shards is not None:
            parse_size(self.shards)

    def _check_cuts(self) -> None:
        counts = {"frames": self.frames, "stride": self.stride}
        counts |= {"frame-sample": _alone(self.frame_sample), "max-frames": _alone(self.max_frames)}
        for name, values in counts.items():
            if values is not None and min(values, default=0) < 1:
                raise UsageError(f"--{name} {listed(values)} is too small; it counts from 1 up")
        if self.frames is None:
            for name in ("stride", "frame-sample"):
                if counts[name] is not None:
                    raise UsageError(f"--{name} cuts videos into pieces; say how long they are with --frames")
            return
        if len({*self.frames}) < len(self.frames):
            raise UsageError(f"--frames {listed(self.frames)} names a length twice")
        if self.max_frames is not None:
            raise UsageError("--max-frames is of videos in one piece; leave it or --frames out")
        if self.stride is not None and len(self.stride) not in (1, len(self.frames)):
            raise UsageError(
                f"--stride {listed(self.stride)}: name one, or one for each length of --frames {listed(self.frames)}"
            )
        if self.stride is not None and self.frame_sample is not None:
            raise UsageError("--stride and --frame-sample both say where pieces begin; leave one of them out")

    @property
    def cuts_clips(self) -> bool:
        """Whether it says anything about videos."""
        return bool(self.frames or self.start or self.target_fps or self.max_frames)

    @property
    def recorded_cuts(self) -> dict[str, Any]:
        """Of videos, as records have it. A single length is a number there: older records have no others."""
        each = (one if one is None or len(one) > 1 else one[0] for one in (self.frames, self.stride))
        said = {"frame_sample": self.frame_sample, "max_frames": self.max_frames}
        pieces = [*([*one] if isinstance(one, tuple) else one for one in each), self.start, self.target_fps]
        return {"pieces": pieces, **{name: value for name, value in said.items() if value is not None}}


def listed(numbers: tuple[int, ...]) -> str:
    """As the command takes them."""
    return ",".join(map(str, numbers))


def _alone(value: int | None) -> tuple[int, ...] | None:
    return None if value is None else (value,)
