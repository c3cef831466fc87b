"""What checksums, and checks of what is read, cost jobs: ``python tests/benchmarks/measure_gates.py``.

Jobs on a CPU with the built-in VAE: 300 photos of 256x256, and a clip of 24 frames 1280x720, encoded and decoded. All
is processor time, so that other work on the machine changes little: ``job`` is that of the whole job in seconds, its
threads and encoders included; ``sums`` the checksums' share of it in percent, ``gates`` that of the checks: opening
regular files alone, JSON within bounds, typed records, headers, the look at images' structure, finite values. What a
check does that reading needs anyway, such as parsing, is counted. ``--tiny`` tries it in seconds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import numpy as np
from measuring.photos import photos
from PIL import Image

from tvae.pipeline.files import checked, content_checksum, record, tensor_header
from tvae.pipeline.jobs import Job, run_job
from tvae.pipeline.latents import tensor_file
from tvae.pipeline.media import image_check, pixels

PARTS: dict[str, tuple[Callable[..., Any], ...]] = {
    "sums": (content_checksum.of_tensors, content_checksum.of_json, content_checksum.of_file),
    "gates": (
        *(checked.open_regular, checked.read_bytes, checked.parse_json, record.from_json, image_check.looks_whole),
        *(tensor_header.read_header, tensor_header.header_of, tensor_header.read_texts),
        *(tensor_file.check_finite, pixels.check_finite),
    ),
}


class Spent:
    """Processor seconds by part, of all threads. A part inside another counts once, to the outer one."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._lock, self._here = threading.Lock(), threading.local()

    def counted(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if getattr(self._here, "inside", False):
                return function(*arguments, **options)
            self._here.inside, begin = True, time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                self._here.inside = False
                with self._lock:
                    self.seconds[part] += time.thread_time() - begin

        return call


@contextmanager
def counting() -> Iterator[Spent]:
    """Wherever tvae's modules have imported these functions, they are counted."""
    spent = Spent()
    wrapped = {id(function): spent.counted(part, function) for part, found in PARTS.items() for function in found}
    changed = []
    for module in [module for name, module in sys.modules.items() if name.startswith("tvae.pipeline")]:
        for name, value in vars(module).items():
            if id(value) in wrapped:
                changed.append((module, name, value))
    for module, name, value in changed:
        setattr(module, name, wrapped[id(value)])
    try:
        yield spent
    finally:
        for module, name, value in changed:
            setattr(module, name, value)


def clip(path: Path, width: int, height: int, frames: int) -> Path:
    """A photo's middle that moves."""
    photos(path.parent / "still", [(2 * width, height)])
    still = np.asarray(Image.open(path.parent / "still" / "000000.jpg"))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=24)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for n in range(frames):
            picture = np.ascontiguousarray(still[:, n * width // frames :][:, :width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


def measured(job: Job) -> dict[str, Any]:
    """One row."""
    with counting() as spent:
        begin = time.process_time()
        done = run_job(job, lambda _: None)
        taken = time.process_time() - begin
    assert not done.failed
    return {"job": taken, "items": done.done, **{part: 100 * spent.seconds[part] / taken for part in PARTS}}


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    tiny = parser.parse_args(arguments).tiny
    count, side, (width, height, frames) = (4, 32, (64, 48, 3)) if tiny else (300, 256, (1280, 720, 24))
    rows = []
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        inputs = {"photos": photos(work / "photos", [(side, side)] * count)}
        inputs["clip"] = clip(work / "clip.mp4", width, height, frames)
        run_job(Job("encode", (str(inputs["photos"]),), output=str(work / "first"), device="cpu"), lambda _: None)
        print("row               job   sums  gates")
        for what, source in inputs.items():
            latents, back = work / f"{what}-latents", work / f"{what}-back"
            for job in (
                Job("encode", (str(source),), output=str(latents), device="cpu"),
                Job("decode", (str(latents),), output=str(back), device="cpu"),
            ):
                rows.append(row := {"row": f"{job.operation} {what}", **measured(job)})
                print(f"{row['row']:14} {row['job']:6.1f} {row['sums']:6.2f} {row['gates']:6.2f}", flush=True)
    return rows


if __name__ == "__main__":
    main()
