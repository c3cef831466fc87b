import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

READ = """
import sys
from tvae.pipeline.media import open_reader
with open_reader(sys.argv[1]) as reader:
    count = sum(frame.rgb.any() for frame in reader)
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(count, peak)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's own account of peak memory")
@pytest.mark.slow
def test_reading_ten_times_the_frames_takes_no_more_memory(make_clip: Callable[..., Path], tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (360, 640, 3)).astype(np.uint8)
    peaks = {}
    for frames in (30, 300):
        pts = range(0, frames * 512, 512)
        clip = make_clip(tmp_path / f"{frames}.mp4", pts=pts, picture=picture, options={"qp": "40"})
        answer = subprocess.run([sys.executable, "-c", READ, str(clip)], capture_output=True, text=True, check=True)
        count, peak = map(int, answer.stdout.split())
        assert count == frames
        peaks[frames] = peak
    assert peaks[300] < 1.05 * peaks[30]  # all 300 frames at once would be 207 MB more
