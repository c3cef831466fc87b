"""Videos as ComfyUI's reader gives them, whose pixels some trainers take: one stream, in the decoder's order, in a
conversion to RGB of its own.

Read at 04dfab9eae80f48e5cc39f59fc12b82a6b0c614e and 0c6cfff61c0a77fa004b5a96df082c594401990a of Comfy-Org/ComfyUI
(``comfy_api/latest/_input_impl/video_types``), which agree in all that is here. Most formats are converted to float32,
which keeps more than 8 bits of each value, and frames whose width is no multiple of 32 are padded before that; JPEG's
and RGB formats are converted to bytes. Alpha is dropped. Frames are turned as the file says. Sound is left out.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av.error
import numpy as np
from av.container import InputContainer
from av.filter import Graph
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from tvae.pipeline.errors import InputError
from tvae.pipeline.media.container import breaks_after, no_decoder, open_container
from tvae.pipeline.media.room import MAX_PIXELS, too_many_pixels

__all__ = ["Header", "as_bytes", "frames_at", "read_header", "whole_count"]

_BYTES = ("yuvj420p", "yuvj422p", "yuvj444p", "rgb24", "rgba", "pal8")
"""Formats that are converted to bytes; all others to floats."""
_WIDTH = 32
"""That frames which are converted to floats are padded to a multiple of."""
_ALIGNMENT = 1 << 20
"""Pixels by which FFmpeg's frames are larger than the picture, at most."""


@dataclass(frozen=True)
class Header:
    """What a file says of its video. size: (width, height), as it is stored. frames: 0 where it does not say. rate:
    frames a second on average; None where it does not say."""

    size: tuple[int, int]
    frames: int
    rate: Fraction | None


def read_header(path: Path) -> Header:
    """InputError for what has no video."""
    with closing(open_container(path)) as container:
        video = _first_video(container, path)
        return Header((video.width, video.height), video.frames, video.average_rate)


def whole_count(path: Path, max_pixels: int = MAX_PIXELS, *, patient: bool = False) -> tuple[int, tuple[int, int]]:
    """How many frames can be decoded, and (width, height) of the first one, upright. All of them are decoded, none is
    kept. patient: what cannot be decoded is passed over, as the reader does. InputError."""
    count, size = 0, (0, 0)
    for frame in _decoded(path, max_pixels, patient):
        if count == 0:
            size = (frame.height, frame.width) if _quarters(frame) % 2 else (frame.width, frame.height)
        count += 1
    return count, size


def frames_at(path: Path, numbers: list[int], max_pixels: int = MAX_PIXELS) -> Iterator[np.ndarray]:
    """uint8 [H, W, 3] of frames with these numbers, which grow or stay; a number that comes again gives its frame
    again. Nothing after the last one is decoded. InputError for what is damaged, and where there are fewer frames."""
    convert, left = None, iter(numbers)
    wanted = next(left, None)
    count = 0
    with closing(_decoded(path, max_pixels, False)) as decoded:
        while wanted is not None:
            frame = next(decoded, None)
            if frame is None:
                raise InputError(f"{path}: it has {count} frames, and {numbers[-1] + 1} are wanted")
            convert = convert or _Conversion(frame)
            if count == wanted:
                pixels = convert(frame)
                while wanted == count:
                    yield pixels
                    wanted = next(left, None)
            count += 1


def as_bytes(values: np.ndarray) -> np.ndarray:
    """float32 from 0 to 1 to uint8; what is between two values becomes the lower one."""
    import torch

    found: np.ndarray = torch.from_numpy(values).mul(255).byte().numpy()
    return found


class _Conversion:
    """Of all frames of a video: the first one says to which format."""

    def __init__(self, first: VideoFrame) -> None:
        alpha = first.format.name == "pal8" or any(part.is_alpha for part in first.format.components)
        self._floats = first.format.name not in _BYTES
        self._format = f"gbr{'a' if alpha else ''}pf32le" if self._floats else "rgba" if alpha else "rgb24"
        self._size = first.width, first.height
        self._padded = self._floats and first.width % _WIDTH != 0
        self._graph = _padding(first) if self._padded else None

    def __call__(self, frame: VideoFrame) -> np.ndarray:
        width, height = self._size
        quarters = _quarters(frame)  # padding does not keep them
        if self._graph is not None:
            self._graph.push(frame)
            pulled: Any = self._graph.pull()
            frame = pulled
        values: np.ndarray = frame.to_ndarray(format=self._format)[:height, :width, :3]
        values = np.ascontiguousarray(np.rot90(values, quarters))
        return as_bytes(values) if self._floats else values


def _padding(frame: VideoFrame) -> Graph:
    """Fills both sides up to a multiple, with copies of the last column and row."""
    width, height = (-(-side // _WIDTH) * _WIDTH for side in (frame.width, frame.height))
    right, bottom = width - frame.width, height - frame.height
    graph = Graph()
    source = graph.add_buffer(width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base)
    graph.link_nodes(
        source,
        graph.add("pad", f"{width}:{height}:0:0"),
        graph.add("fillborders", f"left=0:right={right}:top=0:bottom={bottom}:mode=smear"),
        graph.add("buffersink"),
    ).configure()
    return graph


def _quarters(frame: VideoFrame) -> int:
    """Turns to the left by 90 degrees."""
    return round(frame.rotation // 90)


def _decoded(path: Path, max_pixels: int, patient: bool) -> Generator[VideoFrame, None, None]:
    """See ``whole_count``. InputError for frames that have no time, or not all one size."""
    size, count = None, 0
    with closing(open_container(path, max_pixels + _ALIGNMENT)) as container:
        video = _first_video(container, path)
        if video.codec_context is None:
            raise no_decoder(path)
        if video.width * video.height > max_pixels:
            raise too_many_pixels(path, (video.width, video.height), max_pixels)
        video.codec_context.options = {"max_pixels": str(max_pixels + _ALIGNMENT)}
        video.thread_type = "AUTO"
        try:
            for packet in container.demux(video):
                for frame in _of_packet(packet, patient):
                    if frame.pts is None:
                        raise InputError(f"{path}: its frames have no times, at which ComfyUI's reader stops")
                    if frame.pts < 0:
                        continue
                    size = size or (frame.width, frame.height)
                    if size != (frame.width, frame.height):
                        raise InputError(f"{path}: changes size mid-way; split it, or scale it to one size first")
                    count += 1
                    yield frame
        except (av.error.FFmpegError, OSError) as error:
            raise breaks_after(path, count, error) from error


def _of_packet(packet: Any, patient: bool) -> list[VideoFrame]:
    try:
        found: list[VideoFrame] = packet.decode()
        return found
    except av.error.InvalidDataError:
        if not patient:
            raise
        return []


def _first_video(container: InputContainer, path: Path) -> VideoStream:
    for stream in container.streams.video:
        return stream
    raise InputError(f"{path}: holds no video")
