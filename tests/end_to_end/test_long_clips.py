"""A clip of ten minutes takes the memory of one of half a minute, on a CPU: real footage, looped, 160x96."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from tiny_vaes import TINY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="peak memory is asked of the system in its own way"),
]

WIDTH, HEIGHT, RATE = 160, 96, 25
FOOTAGE = Path(__file__).resolve().parents[3] / "shared" / "media" / "video" / "vtest_pedestrians_768x576.avi"

MEASURE = """
import sys
from tvae.cli.app import main
try:
    main()
finally:
    status = open("/proc/self/status").read()
    print("peak", next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


def pictures() -> Iterator[np.ndarray]:
    """Without an end: the footage, else a wave that moves."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    wave = [np.stack([128 + 90 * np.sin((x + 3 * n) / 9 + c + y / 17) for c in range(3)], -1) for n in range(100)]
    frames = [picture.astype(np.uint8) for picture in wave]
    if FOOTAGE.is_file():
        with av.open(str(FOOTAGE)) as container:
            frames = [f.to_ndarray(format="rgb24", width=WIDTH, height=HEIGHT) for f in container.decode(video=0)]
    while True:
        yield from frames


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A clip of so many seconds, with sound."""
    folder = tmp_path_factory.mktemp("clips")

    def clip(seconds: int) -> Path:
        path = folder / f"{seconds}s.mp4"
        if path.exists():
            return path
        with av.open(str(path), "w") as container:
            video = container.add_stream("libx264", rate=RATE, options={"preset": "veryfast"})
            video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, "yuv420p"
            sound = container.add_stream("aac", rate=48000)
            silence = np.zeros((1, 1024), np.float32)
            heard = 0
            for n, picture in enumerate(islice(pictures(), seconds * RATE)):
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts, frame.time_base = n, Fraction(1, RATE)
                container.mux(video.encode(frame))
                while heard * RATE < (n + 1) * 48000:
                    packet = av.AudioFrame.from_ndarray(silence, format="fltp", layout="mono")
                    packet.sample_rate, packet.pts, packet.time_base = 48000, heard, Fraction(1, 48000)
                    container.mux(sound.encode(packet))
                    heard += 1024
            container.mux(video.encode())
            container.mux(sound.encode())
        return path

    return clip


def peak(*arguments: object) -> int:
    """Largest resident size of the program, in KiB.

    The threshold is fixed, so that freed memory goes back to the system: glibc's own moves with what was freed, and
    peaks of one and the same clip then differ by a tenth.
    """
    command = [sys.executable, "-c", MEASURE, *map(str, arguments), "--device", "cpu", "-q"]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def there_and_back(clip: Path, vae: str, folder: Path) -> tuple[int, int]:
    """Peaks of encode and of decode; the result is the whole clip.

    To be called once before it counts: the first run captures graphs, which takes more than running them.
    """
    latents = folder / f"{clip.name}.latents"
    peaks = (
        peak("encode", clip, "-o", folder, "--vae", vae),
        peak("decode", latents, "-o", folder / clip.name, "--vae", vae),
    )
    with av.open(str(clip)) as source, av.open(str(folder / clip.name)) as result:
        times = [[p.pts * p.time_base for p in file.demux(video=0) if p.pts is not None] for file in (source, result)]
    assert [*map(sorted, times[1:])] == [*map(sorted, times[:1])]
    assert all(b - a == Fraction(1, RATE) for a, b in pairwise(sorted(times[0])))
    print(f"\n{clip.name} with {Path(vae).name}: encode {peaks[0] / 1024:.0f} MiB, decode {peaks[1] / 1024:.0f} MiB")
    return peaks


def test_ten_minutes_with_the_builtin(clip: Callable[[int], Path], tmp_path: Path) -> None:
    there_and_back(clip(1), "builtin", tmp_path)
    short = there_and_back(clip(30), "builtin", tmp_path)
    long = there_and_back(clip(610), "builtin", tmp_path)
    assert long[0] < short[0] * 1.05
    assert long[1] < short[1] * 1.05


def test_a_minute_with_a_small_wan(clip: Callable[[int], Path], tmp_path: Path) -> None:
    """Step by step, with caches."""
    model: Any = TINY["AutoencoderKLWan"].build()
    model.save_pretrained(tmp_path / "wan")
    there_and_back(clip(1), str(tmp_path / "wan"), tmp_path)
    short = there_and_back(clip(10), str(tmp_path / "wan"), tmp_path)
    long = there_and_back(clip(60), str(tmp_path / "wan"), tmp_path)
    assert long[0] < short[0] * 1.05
    assert long[1] < short[1] * 1.05
