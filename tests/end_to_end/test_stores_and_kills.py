"""A command from bucket to bucket that is killed at any moment: whatever has a name is whole, and repeated it ends."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load
from stores import Bucket, S3Server, s3_server

from tvae.pipeline.latents import open_latents

pytestmark = pytest.mark.slow
PHOTOS, KILLS = 12, 4
ALONE = ("--batch", "1")
"""A picture that shares its call with others, which after a kill are other ones, has other last bits."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def bucket(server: S3Server, tmp_path: Path, make_clip: Callable[[Path], Path]) -> Bucket:
    found = Bucket(server, "kills")
    for number in range(PHOTOS):
        levels = np.random.default_rng(number).integers(0, 256, (128, 128, 3), dtype=np.uint8)
        Image.fromarray(levels).save(tmp_path / f"{number}.png")
        found.put(f"in/{number}.png", tmp_path / f"{number}.png")
    found.put("in/c.mkv", make_clip(tmp_path / "c.mkv"))
    return found


@pytest.fixture
def make_clip() -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        import av

        with av.open(str(path), "w") as container:
            stream = container.add_stream("ffv1", rate=25)
            stream.width, stream.height, stream.pix_fmt = 128, 96, "yuv420p"
            for number in range(120):
                levels = np.full((96, 128, 3), number * 2, dtype=np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(levels, format="rgb24")))
            container.mux(stream.encode())
        return path

    return make


def command(bucket: Bucket, output: str) -> list[str]:
    return [sys.executable, "-m", "tvae.cli", "encode", bucket.url("in"), "-o", bucket.url(output), "-q", *ALONE]


def check(bucket: Bucket, folder: Path) -> None:
    """All that has its name is whole."""
    names = bucket.names("out")
    for name in names:
        if name.endswith(".safetensors"):
            load(bucket.get(name))
    if "out/c.mkv.latents/index.json" in names:
        assert [part.index for part in open_latents(bucket.download("out/c.mkv.latents", folder / "c.mkv.latents"))]


def test_kills(bucket: Bucket, tmp_path: Path) -> None:
    began = time.monotonic()
    assert subprocess.run(command(bucket, "whole")).returncode == 0
    took = time.monotonic() - began
    chance = random.Random(7)
    for number in range(KILLS):
        process = subprocess.Popen(command(bucket, "out"), stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.5, 1) * took)
        if process.poll() is None:
            os.kill(process.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        process.wait()
        check(bucket, tmp_path / str(number))
    done: Any = subprocess.run(command(bucket, "out"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = [name.removeprefix("whole/") for name in bucket.names("whole")]
    assert [name.removeprefix("out/") for name in bucket.names("out")] == names
    assert len(names) > PHOTOS + 1
    for name in names:
        if name.endswith(".safetensors"):
            assert bucket.get(f"out/{name}") == bucket.get(f"whole/{name}"), name
