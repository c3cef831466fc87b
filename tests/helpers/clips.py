"""Small clips with sound, made with PyAV alone."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np


def write_clip(path: Path, frames: int, sound: bool, side: int = 16) -> None:
    """Squares of noise, so that a film of it has some size; 25 frames a second."""
    rng = np.random.default_rng(frames)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = side, side, "yuv444p"
        heard = container.add_stream("flac", rate=8000, layout="mono") if sound else None
        for number in range(frames):
            noise = rng.integers(0, 255, (side // 8, side // 8, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(noise, format="rgb24")))
            if heard is not None:
                wave = rng.integers(-9000, 9000, (1, 320), dtype=np.int16)
                samples = av.AudioFrame.from_ndarray(wave, format="s16", layout="mono")
                samples.sample_rate, samples.pts, samples.time_base = 8000, 320 * number, Fraction(1, 8000)
                container.mux(heard.encode(samples))
        container.mux(stream.encode())
        if heard is not None:
            container.mux(heard.encode())
