"""Clips that no network is needed for: a camera that moves over a soft picture."""

from __future__ import annotations

import os
from pathlib import Path

import av
import numpy as np
from PIL import Image

__all__ = ["film"]


def film(folder: Path, width: int, height: int, frames: int) -> Path:
    """One of so many frames in H.264, made once."""
    path = folder / f"{width}x{height}x{frames}.mp4"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    way = height // 4
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 255, ((height + way) // 8, (width + way) // 8, 3), dtype=np.uint8)
    picture = np.asarray(Image.fromarray(coarse).resize((width + way, height + way), Image.Resampling.BICUBIC))
    made = path.with_suffix(".part.mp4")
    with av.open(str(made), "w") as container:
        stream = container.add_stream("libx264", rate=24, options={"crf": "18", "preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            at = number % way
            shown = np.ascontiguousarray(picture[at : at + height, at : at + width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(shown, format="rgb24")))
        container.mux(stream.encode())
    os.replace(made, path)
    return path
