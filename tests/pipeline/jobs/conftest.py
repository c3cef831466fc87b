"""A stand-in for a VAE that is exact where it matters to jobs: geometry, order of frames, timestamps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tvae.pipeline.jobs import Event, Job, RunDone, run_job
from tvae.pipeline.jobs.clip_modes import ClipMode
from tvae.pipeline.models.latent_space import LatentSpace
from tvae.pipeline.models.stepping import Cuts

FACTOR = 8


@dataclass(frozen=True)
class StandInInfo:
    id: str = "stand-in"
    class_name: str = "AutoencoderStandIn"
    config_hash: str = "c" * 64
    path: str | None = None
    weights_sha256: str = "a" * 64
    values: tuple[str, ...] = ()
    spatial_factor: int = FACTOR
    temporal_factor: int | None = None
    lead_frames: int = 1
    latent_group: int = 1
    latent_channels: int = 3
    in_channels: int = 3
    lacks: tuple[str, ...] = ()
    posterior: bool = True
    space: LatentSpace = field(default_factory=lambda: LatentSpace(shift=(0.25,), scale=(0.5,)))


@dataclass
class StandInPosterior:
    mean: Tensor
    logvar: Tensor | None

    def sample(self, generator: torch.Generator) -> Tensor:
        return self.mean + torch.randn(self.mean.shape, generator=generator) * 0.01


class StandIn:
    """Encode: means of 8x8 squares (and, for video, of the frames of a latent). Decode: repeats them.

    ``steps``: it takes clips step by step, and only then in the right order (see :class:`StandInStream`).
    """

    dtype = torch.float32
    device = torch.device("cpu")

    goes_by_frames = False
    whole_pixels = 1 << 18

    def __init__(self, info: StandInInfo, steps: bool = False) -> None:
        self.info, self.steps = info, steps
        self.shapes: list[tuple[int, ...]] = []

    def encode(self, x: Any) -> StandInPosterior:
        if not isinstance(x, Tensor):
            x = x.fetch(0, x.shape[-2]).result()
        self.shapes.append(tuple(x.shape))
        if self.info.temporal_factor is None:
            mean = F.avg_pool2d(x, FACTOR)
        else:
            first, rest = x[:, :, : self.info.lead_frames], x[:, :, self.info.lead_frames :]
            means = rest.unflatten(2, (-1, self.info.temporal_factor)).mean(3)
            mean = F.avg_pool3d(torch.cat([first, means], dim=2), (1, FACTOR, FACTOR))
        return StandInPosterior(mean, torch.full_like(mean, -4.0) if self.info.posterior else None)

    def decode(self, z: Tensor) -> Tensor:
        self.shapes.append(tuple(z.shape))
        z = z.repeat_interleave(FACTOR, -1).repeat_interleave(FACTOR, -2)
        if self.info.temporal_factor is None:
            return z
        lead = self.info.lead_frames
        return torch.cat([z[:, :, :lead], z[:, :, lead:].repeat_interleave(self.info.temporal_factor, 2)], dim=2)

    def run_frames(self, side: str, clip: Any, sink: Any) -> None:
        """Two latent frames at a time; each strip asks for the last one of the strip before once more."""
        factor = self.info.temporal_factor or 1
        count = clip.shape[2] if side == "decode" else 1 + (clip.shape[2] - 1) // factor

        def frames(latents: int) -> int:
            """Frames that the first so many latent frames stand for."""
            return 1 + (latents - 1) * factor if latents else 0

        for lo in range(0, count, 2):
            hi, again = min(lo + 2, count), max(0, lo - 1)
            in_, out = ((lambda n: n), frames) if side == "decode" else (frames, (lambda n: n))
            part = clip.fetch(in_(again), in_(hi)).result()[:, :, in_(lo) - in_(again) :]
            apart = part if lo == 0 else torch.cat([part[:, :, :1], part], 2)  # the first frame is one of its own
            if side == "decode":
                made = self.decode(apart)
            else:
                found = self.encode(apart)
                assert found.logvar is not None
                made = torch.cat([found.mean, found.logvar], 1)
            sink.keep(out(lo), out(hi), made[:, :, lo > 0 :]).result()

    def stream(self, side: str) -> StandInStream | None:
        return StandInStream(self, side) if self.steps else None

    def decode_to(self, z: Tensor, sink: Any) -> None:
        pixels = self.decode(z)
        sink.keep(0, pixels.shape[-2], pixels).result()


class StandInStream:
    """Its only cache counts the steps: each latent frame is off by a hundredth of its number, which decode takes away.

    A step that is left out, done twice, or done with another step's cache gives a wrong grey.
    """

    def __init__(self, model: StandIn, side: str) -> None:
        self._model, self._side = model, side
        info = model.info
        self.cuts = Cuts(info.lead_frames, info.temporal_factor or 1 if side == "encode" else 1)
        self.caches: list[Tensor] = []

    def step(self, chunk: Tensor) -> Tensor:
        done = self.caches[0] if self.caches else torch.zeros(1)
        self.caches = [done + 1]
        model, factor = self._model, self._model.info.temporal_factor or 1
        model.shapes.append(tuple(chunk.shape))
        if self._side == "encode":
            mean = F.avg_pool3d(chunk.mean(2, keepdim=True), (1, FACTOR, FACTOR)) + done / 100
            return torch.cat([mean, torch.full_like(mean, -4.0)], 1)
        pixels = (chunk - done / 100).repeat_interleave(FACTOR, -1).repeat_interleave(FACTOR, -2)
        return pixels.repeat_interleave(factor if done else model.info.lead_frames or factor, 2)

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches)

    def saved(self) -> list[Tensor]:
        return [*self.caches]

    def restore(self, caches: list[Tensor]) -> None:
        self.caches = [*caches]


@pytest.fixture
def stand_in() -> Callable[..., StandIn]:
    """Builds a stand-in; keywords change its info."""
    return lambda steps=False, **changes: StandIn(replace(StandInInfo(), **changes), steps)


@pytest.fixture
def model_of(stand_in: Callable[..., StandIn]) -> Callable[[ClipMode], StandIn]:
    """A stand-in whose clips go this way."""

    def model_of(mode: ClipMode) -> StandIn:
        steps, alone = mode is ClipMode.IN_STEPS, mode is ClipMode.FRAME_BY_FRAME
        made = stand_in(steps=steps, temporal_factor=None if alone else 4)
        made.goes_by_frames = mode is ClipMode.ON_DEMAND
        return made

    return model_of


@pytest.fixture
def run(stand_in: Callable[..., StandIn]) -> Callable[..., tuple[RunDone, list[Event]]]:
    """Runs a job with a stand-in and gives (last event, all events)."""

    def run(operation: Any, *inputs: Path, model: StandIn | None = None, **fields: Any) -> tuple[RunDone, list[Event]]:
        events: list[Event] = []
        if "output" in fields:
            fields["output"] = str(fields["output"])
        job = Job(operation, tuple(map(str, inputs)), **fields)
        return run_job(job, events.append, model=model or stand_in()), events  # type: ignore[arg-type]

    return run


@pytest.fixture
def picture(tmp_path: Path) -> Callable[..., Path]:
    """Writes a PNG whose 8x8 squares are of one colour each, so that the stand-in reproduces it."""

    def picture(name: str = "a.png", width: int = 32, height: int = 16, seed: int = 0) -> Path:
        from PIL import Image

        rng = np.random.default_rng(seed)
        squares = rng.integers(0, 256, (-(-height // FACTOR), -(-width // FACTOR), 3), dtype=np.uint8)
        pixels = squares.repeat(FACTOR, 0).repeat(FACTOR, 1)[:height, :width]
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        return path

    return picture


@pytest.fixture
def clip(tmp_path: Path) -> Callable[..., Path]:
    """Writes a lossless clip of grey frames, each of its own level, with the presentation times given."""

    def clip(name: str = "c.mkv", times: tuple[int, ...] = (0, 40, 80, 120), width: int = 32, height: int = 16) -> Path:
        import av

        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with av.open(str(path), "w") as container:
            stream = container.add_stream("ffv1", rate=25)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv444p"
            stream.codec_context.time_base = stream.time_base = Fraction(1, 1000)
            for index, pts in enumerate(times):
                level = np.full((height, width, 3), level_of(index), dtype=np.uint8)
                frame = av.VideoFrame.from_ndarray(level, format="rgb24")
                frame.pts, frame.time_base = pts, stream.time_base
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return path

    return clip


def level_of(index: int) -> int:
    """Grey of a clip's frame."""
    return 20 + (index * 37) % 200


@pytest.fixture
def shown() -> Callable[[Path], list[tuple[float, int]]]:
    """(time in seconds, mean grey level) of every frame of a video, by PyAV alone."""

    def shown(path: Path) -> list[tuple[float, int]]:
        import av

        with av.open(str(path)) as container:
            frames = container.decode(video=0)
            return [(frame.time, round(float(frame.to_ndarray(format="rgb24").mean()))) for frame in frames]

    return shown
