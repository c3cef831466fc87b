"""Small data sets of diffusion-pipe in the current folder: pictures and videos of several shapes, captions, a file."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image

__all__ = ["BUCKETS", "CLIPS", "SIZES", "VIDEOS", "damaged_video", "made", "made_with_videos", "picture", "video"]

SIZES = {"a.png": (96, 64), "b.png": (64, 96), "c.png": (80, 81), "größe.jpg": (90, 64), "e.png": (64, 64)}
BUCKETS = """
resolutions = [64, 96]
enable_ar_bucket = true
min_ar = 0.5
max_ar = 2.0
num_ar_buckets = 5
"""
CLIPS = f"{BUCKETS}frame_buckets = [5, 9, 17]\n"
VIDEOS: dict[str, tuple[tuple[int, int], int, str]] = {
    "same.mp4": ((64, 64), 20, "16"),
    "fast.mp4": ((96, 64), 40, "30"),
    "film.mkv": ((66, 50), 17, "24000/1001"),
    "slow.mp4": ((64, 96), 5, "8"),
    "short.mp4": ((64, 64), 3, "16"),
    "one.mp4": ((64, 64), 2, "25"),
}
"""Size, frames, and frames a second."""


def picture(path: Path, size: tuple[int, int], seed: int = 0) -> None:
    """Smooth noise, so that scaling keeps much of it."""
    coarse = np.random.default_rng(seed).integers(0, 256, (size[1] // 4, size[0] // 4, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize(size).save(path)


def made(settings: str = BUCKETS, folder: str = "pictures") -> Path:
    """The file, which names the folder as it is named here."""
    Path(folder).mkdir(exist_ok=True)
    for number, (name, size) in enumerate(SIZES.items()):
        picture(Path(folder, name), size, number)
        Path(folder, name).with_suffix(".txt").write_text(f" a caption of {name}\n", encoding="utf-8")
    path = Path("dataset.toml")
    path.write_text(f"{settings}\n[[directory]]\npath = '{folder}'\n", encoding="utf-8")
    return path


def video(path: Path, size: tuple[int, int], frames: int, rate: str, seed: int = 0, pix_fmt: str = "yuv420p") -> None:
    """Each frame is 3 pixels to the left of the one before. mp4 of MPEG-4, other containers of a codec without loss."""
    coarse = np.random.default_rng(seed).integers(0, 256, (size[1] // 4, size[0] // 4, 3), dtype=np.uint8)
    first = np.asarray(Image.fromarray(coarse).resize(size))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4" if path.suffix == ".mp4" else "ffv1", rate=Fraction(rate))
        (stream.width, stream.height), stream.pix_fmt = size, pix_fmt
        for number in range(frames):
            shown = np.ascontiguousarray(np.roll(first, -3 * number, 1))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(shown, format="rgb24")))
        container.mux(stream.encode())


def damaged_video(path: Path, frames: int, bad: int) -> None:
    """16x16 at 16 a second; the packet of one frame cannot be decoded."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=16)
        stream.width, stream.height, stream.pix_fmt = 16, 16, "yuv420p"
        for number in range(frames):
            for packet in stream.encode(av.VideoFrame(16, 16, "yuv420p")):
                shown = av.Packet(b"\0\1\2\3") if number == bad else packet
                shown.stream, shown.pts, shown.dts, shown.time_base = stream, packet.pts, packet.dts, packet.time_base
                container.mux(shown)


def made_with_videos(settings: str = CLIPS, folder: str = "mixed") -> Path:
    """The file. Of the folder's pictures one is as large as most of its videos."""
    Path(folder).mkdir(exist_ok=True)
    picture(Path(folder, "still.png"), (64, 64), 9)
    for number, (name, (size, frames, rate)) in enumerate(VIDEOS.items()):
        video(Path(folder, name), size, frames, rate, number)
    for path in [*Path(folder).glob("*.m*"), Path(folder, "still.png")]:
        path.with_suffix(".txt").write_text(f"a caption of {path.name}", encoding="utf-8")
    path = Path("dataset.toml")
    path.write_text(f"{settings}\n[[directory]]\npath = '{folder}'\n", encoding="utf-8")
    return path
