"""Makes a small clip to try tvae on: a moving picture with sound. Usage: python tests/make_clip.py clip.mp4"""

from __future__ import annotations

import sys
from fractions import Fraction

import av
import numpy as np

WIDTH, HEIGHT, FRAMES, RATE, SOUND_RATE = 320, 176, 48, 24, 48000


def picture(t: float) -> np.ndarray:
    """uint8 [HEIGHT, WIDTH, 3]: soft colours, and a disc that crosses them with t in [0, 1]."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float32)
    waves = [np.sin(x / 37 + 5 * t), np.cos(y / 23 - 3 * t), np.sin((x + y) / 51 + 2 * t)]
    rgb = np.stack([128 + 70 * w for w in waves], axis=-1)
    disc = (x - WIDTH * t) ** 2 + (y - HEIGHT * (0.5 + 0.3 * np.sin(6.28 * t))) ** 2 < 28**2
    rgb[disc] = (250, 220, 60)
    return rgb.clip(0, 255).astype(np.uint8)


def main(path: str) -> None:
    """Write the clip: H.264 and AAC."""
    with av.open(path, "w") as container:
        video = container.add_stream("libx264", rate=RATE)
        video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        sound = container.add_stream("aac", rate=SOUND_RATE)
        for n in range(FRAMES):
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture(n / FRAMES), format="rgb24")))
        samples = np.arange(SOUND_RATE * FRAMES // RATE)
        tone = (0.2 * np.sin(samples * 2 * np.pi * 440 / SOUND_RATE)).astype(np.float32)
        for start in range(0, len(tone), 1024):
            frame = av.AudioFrame.from_ndarray(tone[None, start : start + 1024], format="fltp", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = SOUND_RATE, start, Fraction(1, SOUND_RATE)
            container.mux(sound.encode(frame))
        container.mux(video.encode())
        container.mux(sound.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
