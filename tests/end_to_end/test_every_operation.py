"""A run to which something happens at any of its file operations: the next run leaves the bytes of an undisturbed one,
and nothing else. The slow run is all operations with all that can happen."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from clips import write_clip
from file_operations import KINDS, Operations
from PIL import Image
from process_copy import process_copy
from stand_in import StandIn

from tvae.pipeline.errors import InputError, OutputError, TvaeError
from tvae.pipeline.jobs import Event, ItemFailed, Job, checkpoint, run_job

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="copies its own process"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
RUNS = [("encode", "skip"), ("decode", "skip"), ("roundtrip", "skip"), ("encode", "overwrite"), ("decode", "overwrite")]
"""Where all is overwritten, results are there."""
QUICK = [("encode", "skip"), ("decode", "overwrite")]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What each operation reads: a picture, a clip with sound, and one of several parts; latents of them."""
    folder, latents = (tmp_path_factory.mktemp(name) for name in ("media", "latents"))
    levels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(levels).save(folder / "image.png")
    write_clip(folder / "clip.mkv", 5, sound=True)
    write_clip(folder / "long.mkv", 140, sound=True)
    assert work("encode", "skip", folder, latents) == []
    return {"encode": folder, "decode": latents, "roundtrip": folder}


@pytest.fixture(autouse=True)
def checkpoints() -> Iterator[None]:
    """One after every part."""
    before, checkpoint.SHARE = checkpoint.SHARE, 1e9
    yield
    checkpoint.SHARE = before


def work(operation: str, existing: str, source: Path, out: Path) -> list[str]:
    """Faults of tvae's own."""
    events: list[Event] = []
    job = Job(operation, (str(source),), output=str(out), existing=existing)  # type: ignore[arg-type]
    run_job(job, events.append, model=StandIn())  # type: ignore[arg-type]
    failed = [event for event in events if isinstance(event, ItemFailed)]
    return [repr(event.cause) for event in failed if not isinstance(event.cause, (InputError, OutputError))]


def struck(
    operation: str, existing: str, source: Path, out: Path, kind: str = "", number: int = 0
) -> tuple[int, list[str]]:
    """How many operations a process has done in which the n-th was struck, and its faults; none where it was killed."""
    read, write = os.pipe()
    process = process_copy()
    if process == 0:
        gc.freeze()  # decoders of before have threads that are not here
        signal.alarm(120)
        told: list[str] = []
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            operations = Operations(out, kind, number)
            try:
                told = work(operation, existing, source, out)
            except (KeyboardInterrupt, TvaeError):  # a run that cannot begin is refused
                pass
            except BaseException as error:
                told = [repr(error)]
            os.write(write, json.dumps([operations.count, told]).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(process, 0)
    count, told = json.loads(answer) if answer else (0, [])
    return count, told


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.long
@pytest.mark.parametrize("share", [19, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "run", [pytest.param(r, marks=() if r in QUICK else pytest.mark.slow) for r in RUNS], ids=" ".join
)
def test_the_next_run_does_the_rest(
    run: tuple[str, str], share: int, sources: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``share``: every so many-th operation, with one kind; 1 is all with all kinds."""
    operation, existing = run
    given, start, out = (operation, existing, sources[operation]), tmp_path / "start", tmp_path / "out"
    assert work(*given, tmp_path / "whole") == []
    whole = content(tmp_path / "whole")
    start.mkdir()
    if existing == "overwrite":
        assert work(*given, start) == []
    shutil.copytree(start, out)
    count, _ = struck(*given, out)
    assert content(out) == whole
    assert count > 20
    cases = [(number, kind) for number in range(1, count + 1) for kind in KINDS]
    cases = cases if share == 1 else cases[:: share * len(KINDS) + 1]
    wrong = []
    for number, kind in cases:
        shutil.rmtree(out)
        shutil.copytree(start, out)
        _, told = struck(*given, out, kind, number)
        told += work(*given, out)
        left = content(out)
        if told or left != whole:
            differ = [name for name in {**whole, **left} if whole.get(name) != left.get(name)]
            wrong.append((number, kind, told, differ))
    assert wrong == []
    if share == 1:
        with capsys.disabled():
            print(f"\n{operation}, {existing}: {count} operations, {len(cases)} cases", end="")
