"""Clips of a streaming video VAE on a GPU: memory and time a frame by the clip's length.

``PYTHONPATH=tests/helpers python tests/gpu/measure_steps.py decode 17,33,129``: Wan 2.1's shape, 832x480, bfloat16.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch

from tvae.pipeline.bench.shapes import SHAPES, build
from tvae.pipeline.models.model import open_model

GIB = 1 << 30


def main() -> None:
    side, lengths = sys.argv[1], [int(n) for n in sys.argv[2].split(",")]
    with tempfile.TemporaryDirectory() as folder:
        build(SHAPES["wan21"]).bfloat16().save_pretrained(Path(folder) / "wan")  # type: ignore[operator]
        model = open_model(str(Path(folder) / "wan"), preset="h200", dtype="bfloat16")
        print("frames  peak GiB  first ms  ms a frame after 2 steps")
        for frames in lengths:
            stream = model.stream(side)  # type: ignore[arg-type]
            assert stream is not None
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            times = []
            for step in range(1 + (frames - 1) // 4):
                if side == "decode":
                    chunk = torch.randn(1, 16, 1, 60, 104)
                else:
                    chunk = torch.rand(1, 3, 4 if step else 1, 480, 832) * 2 - 1
                torch.cuda.synchronize()
                start = time.perf_counter()
                stream.step(chunk)
                torch.cuda.synchronize()
                times.append(time.perf_counter() - start)
            steady = sorted(times[3:])[len(times[3:]) // 2] / 4 if len(times) > 3 else float("nan")
            peak = torch.cuda.max_memory_allocated() / GIB
            print(f"{frames:6}  {peak:8.2f}  {1e3 * times[0]:8.1f}  {1e3 * steady:8.2f}", flush=True)


if __name__ == "__main__":
    main()
