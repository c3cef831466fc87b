"""Small clips made with PyAV alone, and reading back with PyAV alone: the oracle for our readers and writers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

RED_GREEN_BLUE_WHITE = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255))


def corners(height: int = 32, width: int = 48) -> np.ndarray:
    """Red, green over blue, white: every turn and mirroring of it looks different."""
    picture = np.zeros((height, width, 3), np.uint8)
    for colour, (top, left) in zip(
        RED_GREEN_BLUE_WHITE, ((0, 0), (0, width // 2), (height // 2, 0), (height // 2, width // 2)), strict=True
    ):
        picture[top : top + height // 2, left : left + width // 2] = colour
    return picture


@pytest.fixture(scope="session")
def quarters() -> np.ndarray:
    return corners()


@dataclass
class Packets:
    """What a demuxer gives for one stream: payloads and pts in seconds."""

    type: str
    language: str | None
    disposition: int
    payloads: list[bytes]
    starts: list[float]


@pytest.fixture(scope="session")
def demux() -> Callable[[Path], tuple[Fraction, list[tuple[int, int]], list[Packets]]]:
    """Time base of the picture, its packets' sorted (pts, duration), and the sound and subtitle streams."""

    def read(path: Path) -> tuple[Fraction, list[tuple[int, int]], list[Packets]]:
        with av.open(str(path)) as container:
            video = container.streams.video[0]
            others = {
                stream.index: Packets(stream.type, stream.language, int(stream.disposition), [], [])
                for stream in container.streams
                if stream.type in ("audio", "subtitle")
            }
            picture: list[tuple[int, int]] = []
            for packet in container.demux():
                if not packet.size:
                    continue
                if packet.stream_index == video.index:
                    picture.append((packet.pts, packet.duration))
                elif packet.stream_index in others:
                    entry = others[packet.stream_index]
                    entry.payloads.append(bytes(packet))
                    entry.starts.append(float(packet.pts * packet.time_base))
            return video.time_base, sorted(picture), list(others.values())

    return read


@pytest.fixture(scope="session")
def make_clip() -> Callable[..., Path]:
    """Encode a clip: ``pts`` in ``time_base`` decides the frames; ``audio`` is (codec, first pts in samples)."""

    def make(
        path: Path,
        pts: Sequence[int] = tuple(range(0, 8 * 512, 512)),
        time_base: Fraction = Fraction(1, 12800),
        picture: np.ndarray | None = None,
        codec: str = "libx264",
        pix_fmt: str = "yuv420p",
        options: dict[str, str] | None = None,
        tags: tuple[int, int, int, int] | None = (1, 1, 1, 1),
        audio: tuple[str, int] | None = None,
        rotation: tuple[float, bool] | None = None,
        aspect: Fraction | None = None,
        muxer: str | None = None,
        muxer_options: dict[str, str] | None = None,
    ) -> Path:
        frame = corners() if picture is None else picture
        with av.open(str(path), "w", format=muxer, container_options=muxer_options or {}) as output:
            settings = {"preset": "ultrafast", "qp": "0"} if codec == "libx264" else {}
            stream = output.add_stream(
                codec, rate=25, width=frame.shape[1], height=frame.shape[0], options=settings | (options or {})
            )
            stream.pix_fmt = pix_fmt
            stream.time_base = stream.codec_context.time_base = time_base
            context = stream.codec_context
            if tags is not None:
                context.colorspace, context.color_range, context.color_primaries, context.color_trc = tags
            if aspect is not None:
                context.sample_aspect_ratio = aspect
            if rotation is not None:
                stream.set_display_rotation(rotation[0], hflip=rotation[1])
            sound = output.add_stream(audio[0], rate=48000) if audio is not None else None
            if audio is not None and sound is not None:
                sound.metadata["language"] = "eng"
                span = (pts[-1] - pts[0]) * time_base + Fraction(1, 10)
                waves = np.random.default_rng(1).normal(0, 0.1, (2, int(span * 48000))).astype(np.float32)
                step = 1024
                for start in range(0, waves.shape[1] - step, step):
                    piece = np.ascontiguousarray(waves[:, start : start + step])
                    samples = av.AudioFrame.from_ndarray(piece, format="fltp", layout="stereo")
                    samples.sample_rate, samples.pts, samples.time_base = 48000, audio[1] + start, Fraction(1, 48000)
                    output.mux(sound.encode(samples))
                output.mux(sound.encode(None))
            for value in pts:
                image = av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(
                    format=pix_fmt, dst_colorspace=1 if tags else None, dst_color_range=1 if tags else None
                )
                image.pts, image.time_base = value, time_base
                output.mux(stream.encode(image))
            output.mux(stream.encode(None))
        return path

    return make
