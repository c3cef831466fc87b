"""Two processes at once on one output, with the same options and with others, on a disk and in memory: each result is
whole and of one of them, and nothing else is left."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clips import write_clip
from PIL import Image
from process_copy import process_copy
from slow_but import slow_but
from stand_in import StandIn

from tvae.pipeline.jobs import Event, ItemFailed, Job, run_job

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="copies its own process"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
MEMORY = Path("/dev/shm")
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "encode": ({}, {"size": (24, 24), "audio": "none"}),
    "decode": ({}, {"crf": 40.0}),
    "roundtrip": ({}, {"crf": 40.0, "audio": "none"}),
}
"""Of each operation: two sets, whose results differ."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What each operation reads."""
    folder, latents = (tmp_path_factory.mktemp(name) for name in ("media", "latents"))
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / "image.png")
    write_clip(folder / "clip.mkv", 5, sound=True)
    write_clip(folder / "long.mkv", 140, sound=True)
    assert work("encode", folder, latents, {}) == []
    return {"encode": folder, "decode": latents, "roundtrip": folder}


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "disk":
        yield tmp_path
    elif not MEMORY.is_dir():
        pytest.skip("there is no file system in memory here")
    else:
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            yield Path(folder)


def work(operation: str, source: Path, out: Path, options: dict[str, Any]) -> list[str]:
    """Why items failed."""
    events: list[Event] = []
    job = Job(operation, (str(source),), output=str(out), **options)  # type: ignore[arg-type]
    run_job(job, events.append, model=StandIn())  # type: ignore[arg-type]
    return [event.error for event in events if isinstance(event, ItemFailed)]


def beside(operation: str, source: Path, out: Path, options: dict[str, Any]) -> tuple[int, int]:
    """A process that does it, and the end of a pipe from which what it told comes."""
    read, write = os.pipe()
    process = process_copy()
    if process == 0:
        gc.freeze()  # decoders of before have threads that are not here
        told = ["did not end"]
        try:
            told = work(operation, source, out, options)
        except BaseException as error:
            told = [repr(error)]
        finally:
            os.write(write, json.dumps(told).encode())
            os._exit(0)
    os.close(write)
    return process, read


def told_by(process: int, read: int) -> list[str]:
    with open(read, "rb") as pipe:
        found: list[str] = json.loads(pipe.read() or '["killed"]')
    os.waitpid(process, 0)
    return found


def content(folder: Path) -> dict[str, dict[str, bytes]]:
    """The files of each result."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    results: dict[str, dict[str, bytes]] = {}
    for path in files:
        relative = path.relative_to(folder)
        results.setdefault(relative.parts[0], {})[str(relative)] = path.read_bytes()
    return results


@pytest.mark.long
@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("operation", slow_but(["encode"], OPTIONS))
def test_each_result_is_of_one_run(
    operation: str, rounds: int, sources: dict[str, Path], place: Path, tmp_path: Path
) -> None:
    """Half of the pairs have the same options."""
    source, first = sources[operation], OPTIONS[operation][0]
    whole, longest = [], 0.0
    for number, options in enumerate(OPTIONS[operation]):
        begin = time.monotonic()
        assert work(operation, source, tmp_path / f"whole{number}", options) == []
        longest = time.monotonic() - begin
        whole.append(content(tmp_path / f"whole{number}"))
    assert whole[0] != whole[1]
    rng, out = random.Random(rounds), place / "out"
    for number in range(rounds):
        shutil.rmtree(out, ignore_errors=True)
        other = OPTIONS[operation][(number + 1) % 2]
        one = beside(operation, source, out, first)
        time.sleep(rng.uniform(0, longest) * rng.choice((0, 0.2, 1)))
        two = beside(operation, source, out, other)
        assert (told_by(*one), told_by(*two)) == ([], []), number
        left = content(out)
        assert sorted(left) == sorted(whole[0]), number
        for name, files in left.items():
            assert files in (whole[0][name], whole[1][name] if other is not first else None), (number, name)
