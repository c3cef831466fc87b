"""A long clip takes no more memory than a short one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest

MEASURE = """
import sys
sys.path.insert(0, {folder!r})
from conftest import StandIn, StandInInfo
from tvae.pipeline.jobs import Job, run_job
done = run_job(Job({operation!r}, ({source!r},), output={output!r}), lambda event: None, model=StandIn(StandInInfo()))
assert done.done == 1
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is asked of the system in its own way")
@pytest.mark.slow
def test_many_frames_need_no_more_than_a_few(tmp_path: Path) -> None:
    """Decoding 650 is writing five parts, each by an encoder of its own; their pixels would be 37 MB."""
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (120, 160, 3), dtype=np.uint8) for _ in range(10)]
    peaks: dict[str, list[int]] = {"encode": [], "decode": []}
    for frames in (140, 650):
        source = tmp_path / f"{frames}.mkv"
        with av.open(str(source), "w") as container:
            stream = container.add_stream("mpeg4", rate=25)
            stream.width, stream.height = 160, 120
            for index in range(frames):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pictures[index % 10], format="rgb24")))
            container.mux(stream.encode())
        latents = tmp_path / "out" / f"{source.name}.latents"
        for operation, given in (("encode", source), ("decode", latents)):
            code = MEASURE.format(
                folder=str(Path(__file__).parent), operation=operation, source=str(given), output=str(tmp_path / "out")
            )
            run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            peaks[operation].append(int(run.stdout))
    for operation, (short, long) in peaks.items():
        assert long < short * 1.05, operation
