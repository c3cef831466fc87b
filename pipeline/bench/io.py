"""How fast pictures get in and out: decoding, copies to the device, latents, encoding, and the disk itself."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tvae.pipeline.bench.timing import queued_seconds
from tvae.pipeline.errors import InputError
from tvae.pipeline.files.atomic import replacing
from tvae.pipeline.latents import (
    Geometry,
    LatentsMeta,
    PosteriorRecord,
    SourceRecord,
    SpaceRecord,
    VaeIdentity,
    VideoLatentsWriter,
    open_latents,
)
from tvae.pipeline.media import Frame, PictureSpec, frames_to_tensor, open_reader, open_writer, tensor_to_frames

__all__ = ["IoRow", "bench_io"]

_RATE = 24
_PART_FRAMES = 8
_LATENT_CHANNELS = 16


@dataclass(frozen=True)
class IoRow:
    """One way in or out. bytes: of the pixels or latents that went through, in memory, not of the compressed file."""

    what: str
    seconds: float
    bytes: int
    frames: int | None = None
    note: str = ""

    @property
    def bytes_per_second(self) -> float:
        """Rate."""
        return self.bytes / self.seconds

    @property
    def frames_per_second(self) -> float | None:
        """Rate; None where there are no frames."""
        return None if self.frames is None else self.frames / self.seconds

    def to_json(self) -> dict[str, Any]:
        """JSON-able."""
        rates = {"bytes_per_second": self.bytes_per_second, "frames_per_second": self.frames_per_second}
        return {**asdict(self), **rates}


def bench_io(
    device: torch.device,
    *,
    file: str | None,
    size: tuple[int, int],
    frames: int,
    folder: Path | None,
    disk_bytes: int = 1 << 28,
) -> Iterator[IoRow]:
    """Rows, each as soon as it is known. Everything is written into a folder of its own below ``folder``, and removed.

    file: what to read; None makes a clip of ``frames`` frames of ``size`` (width, height), and a picture. Raises
    InputError for a file that cannot be read or a folder that cannot be written.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="tvae-bench-", dir=folder) as own:
            yield from _rows(device, Path(own), file, size, frames, disk_bytes)
    except OSError as error:
        raise InputError(f"cannot write into '{folder or tempfile.gettempdir()}': {error.strerror or error}") from error


def _rows(
    device: torch.device, own: Path, file: str | None, size: tuple[int, int], frames: int, disk_bytes: int
) -> Iterator[IoRow]:
    pictures = [_picture(*size, i / frames) for i in range(frames)]
    clip, image = own / "clip.mp4", own / "image.png"
    yield _write("encode video", clip, pictures)
    yield _write("write image", image, pictures[:1])
    if file is None:
        yield _read("decode video", clip)
        yield _read("read image", image)
    else:
        yield _read("read file", Path(file))

    tensor = frames_to_tensor(pictures)
    count, of_frames = len(pictures), sum(p.nbytes for p in pictures)
    yield IoRow("frames to values", _seconds(lambda: frames_to_tensor(pictures)), of_frames, count)
    yield IoRow("values to frames", _seconds(lambda: tensor_to_frames(tensor)), of_frames, count)
    if device.type == "cuda":
        yield from _copies(device, tensor, count)

    latents = torch.randn(_LATENT_CHANNELS, count, max(1, size[1] // 8), max(1, size[0] // 8)).bfloat16()
    target = own / "clip.mp4.latents"
    seconds = _once(lambda: _write_latents(target, latents, clip, size))
    yield IoRow("write latents", seconds, latents.nbytes, count, f"parts of {_PART_FRAMES} frames, flushed")
    yield IoRow("read latents", _seconds(lambda: list(open_latents(target))), latents.nbytes, count)
    yield IoRow("write to disk", _once(lambda: _write_raw(own / "raw", disk_bytes)), disk_bytes, None, "flushed")


def _picture(width: int, height: int, t: float) -> np.ndarray:
    """uint8 [H, W, 3]: soft waves that move with t in [0, 1], and some grain, so that encoders have work to do."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    waves = [np.sin(x / 37 + 5 * t), np.cos(y / 23 - 3 * t), np.sin((x + y) / 51 + 2 * t)]
    grain = np.random.default_rng(round(1000 * t)).normal(0, 6, (height, width, 1))
    return (128 + 70 * np.stack(waves, axis=-1) + grain).clip(0, 255).astype(np.uint8)


def _write(what: str, path: Path, pictures: list[np.ndarray]) -> IoRow:
    height, width, _ = pictures[0].shape
    start = time.perf_counter()
    with open_writer(path, PictureSpec(width, height, Fraction(1, _RATE), Fraction(_RATE))) as writer:
        for index, picture in enumerate(pictures):
            writer.write(Frame(picture, index, 1))
        writer.commit()
    seconds = time.perf_counter() - start
    return IoRow(what, seconds, sum(p.nbytes for p in pictures), len(pictures), f"{width}x{height} {path.suffix}")


def _read(what: str, path: Path) -> IoRow:
    frames = size = 0
    start = time.perf_counter()
    with open_reader(path) as reader:
        for frame in reader:
            frames, size = frames + 1, size + frame.rgb.nbytes
        seconds = time.perf_counter() - start
        info = reader.info
    return IoRow(what, seconds, size, frames, f"{info.width}x{info.height} {info.codec}")


def _copies(device: torch.device, tensor: torch.Tensor, count: int) -> Iterator[IoRow]:
    """Between host and device, from ordinary and from pinned memory."""
    there = torch.empty_like(tensor, device=device)
    pinned = tensor.pin_memory()
    for what, run in (
        ("host to device, pageable", lambda: there.copy_(tensor)),
        ("host to device, pinned", lambda: there.copy_(pinned, non_blocking=True)),
        ("device to host, pageable", lambda: tensor.copy_(there)),
        ("device to host, pinned", lambda: pinned.copy_(there, non_blocking=True)),
    ):
        yield IoRow(what, queued_seconds(run, device, repeat=10), tensor.nbytes, count, "float32")


def _write_latents(folder: Path, latents: torch.Tensor, source: Path, size: tuple[int, int]) -> None:
    meta = LatentsMeta(
        kind="video",
        vae=VaeIdentity("benchmark", "AutoencoderKL", "0" * 64, "0" * 64, len(latents), 8, None),
        space=SpaceRecord("raw"),
        posterior=PosteriorRecord("mean"),
        dtype="bfloat16",
        source=SourceRecord.of(source),
        geometry=Geometry(*size),
        time_base=Fraction(1, _RATE),
        frame_rate=Fraction(_RATE),
    )
    with VideoLatentsWriter(folder, meta) as writer:
        first = 0
        for part in latents.split(_PART_FRAMES, 1):
            times = list(range(first, first + part.shape[1]))
            writer.add({"latents": part}, times, [1] * len(times))
            first += len(times)
        writer.commit()


def _write_raw(path: Path, size: int) -> None:
    """Incompressible bytes, flushed to the disk."""
    block = os.urandom(min(size, 1 << 22))
    with replacing(path) as temporary, open(temporary, "wb") as file:
        for _ in range(max(1, size // len(block))):
            file.write(block)


def _once(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _seconds(run: Callable[[], Any]) -> float:
    """The median of three."""
    return sorted(_once(run) for _ in range(3))[1]
