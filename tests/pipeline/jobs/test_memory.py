"""A long clip takes no more memory than a short one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest

MEASURE = """
import resource, sys
sys.path.insert(0, {folder!r})
from conftest import StandIn, StandInInfo
from tvae.pipeline.jobs import Job, run_job
done = run_job(Job({operation!r}, ({source!r},), output={output!r}), lambda event: None, model=StandIn(StandInInfo()))
assert done.done == 1
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is asked of the system in its own way")
def test_three_hundred_frames_need_no_more_than_thirty(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (240, 320, 3), dtype=np.uint8) for _ in range(10)]
    peaks = {}
    for frames in (30, 300):
        source = tmp_path / f"{frames}.mkv"
        with av.open(str(source), "w") as container:
            stream = container.add_stream("mpeg4", rate=25)
            stream.width, stream.height = 320, 240
            for index in range(frames):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pictures[index % 10], format="rgb24")))
            container.mux(stream.encode())
        code = MEASURE.format(
            folder=str(Path(__file__).parent), operation="encode", source=str(source), output=str(tmp_path / "out")
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        peaks[frames] = int(run.stdout)
    assert peaks[300] < peaks[30] * 1.05
