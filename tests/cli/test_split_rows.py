"""``--split rows`` from the command line: results are those of one device, and a lost one costs its item alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clips import write_clip
from living_processes import living
from PIL import Image
from safetensors.torch import load_file
from tiny_vaes import TINY, relative_l2

HELPERS = Path(__file__).parents[1] / "helpers"
PROGRAM = """
import sys
from tvae.pipeline.jobs.devices import alive, names, started
from tvae.pipeline.jobs.devices import rows
names.present_devices = lambda text: [f"cpu:{{n}}" for n in range(int(text))]
from tvae.pipeline.session import sharing_pays
sharing_pays._START_SECONDS = {start!r}
started.COMMAND = (sys.executable, {worker!r}, *{mode!r})
begin = rows.DevicesRun._work
def work(self):
    alive.SILENT_SECONDS = {patience!r}
    begin(self)
rows.DevicesRun._work = work
from tvae.cli.app import main
main()
"""
pytestmark = pytest.mark.slow
POSIX = pytest.mark.skipif(os.name == "nt", reason="signals of this kind do not exist there")
Done = subprocess.CompletedProcess


@pytest.fixture
def tvae(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done[str]]:
    """The program, of whose processes none is left."""
    monkeypatch.chdir(tmp_path)
    pids = tmp_path / "pids"
    pids.mkdir()

    def tvae(
        *arguments: object,
        mode: tuple[str, ...] = ("0", "as-it-is"),
        patience: float = 900.0,
        start: float = 4.5,
        killed: bool = False,
    ) -> Done[str]:
        """killed: as soon as its processes are there."""
        worker = str(HELPERS / "rank_worker.py")
        code = PROGRAM.format(worker=worker, mode=mode, patience=patience, start=start)
        paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(HELPERS)]
        more = {"TVAE_TEST_PIDS": str(pids), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        command = [sys.executable, "-c", code, *map(str, arguments), "--no-progress"]
        if killed:
            with subprocess.Popen(command, env=os.environ | more, stderr=subprocess.DEVNULL) as run:
                until(lambda: len([*pids.iterdir()]) > 1 and bool([*(tmp_path / "tmp").iterdir()]))
                run.kill()
            until(lambda: living(pids) == [])
            return Done(command, run.returncode)
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | more, timeout=240)
        assert os.name == "nt" or living(pids) == []
        assert [path for path in tmp_path.rglob(".*") if path.suffix in (".tmp", ".lock")] == []
        return done

    return tvae


def until(there: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end
        time.sleep(0.02)


def photos(folder: Path, count: int, height: int = 120) -> Path:
    folder.mkdir()
    for n in range(count):
        y, x = np.mgrid[0:height, 0 : 64 + 16 * n]
        levels = np.stack([(3 * x + y) % 256, (x * y) % 256, (5 * y + 40 * n) % 256], -1)
        Image.fromarray(levels.astype(np.uint8)).save(folder / f"{n}.png")
    return folder


def same_latents(one: Path, other: Path) -> None:
    names = sorted(path.relative_to(one) for path in one.rglob("*.safetensors"))
    assert names
    assert names == sorted(path.relative_to(other) for path in other.rglob("*.safetensors"))
    for name in names:
        a, b = load_file(one / name), load_file(other / name)
        assert a.keys() == b.keys()
        for key in a:
            assert relative_l2(b[key].double(), a[key].double()) <= 1e-5


def pixels(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.asarray(Image.open(path)).astype(np.int64))


@pytest.mark.parametrize("count", [2, 3])
def test_pictures(count: int, tvae: Any, tmp_path: Path) -> None:
    """Sizes that differ, more of them than devices; both sides, and both in one."""
    source = photos(tmp_path / "in", 4)
    for folder, more in (("one", ()), ("all", ("--devices", count, "--split", "rows"))):
        assert tvae("encode", source, "-o", folder, "--posterior", "moments", *more).returncode == 0
        assert tvae("decode", "one", "-o", f"{folder}-out", *more).returncode == 0
        assert tvae("roundtrip", source, "-o", f"{folder}-again", *more).returncode == 0
    same_latents(tmp_path / "one", tmp_path / "all")
    for folder in ("out", "again"):
        for n in range(4):
            far = (
                pixels(tmp_path / f"all-{folder}" / f"{n}.png") - pixels(tmp_path / f"one-{folder}" / f"{n}.png")
            ).abs()
            assert far.max() <= 1, "of 255 levels, where rounding falls otherwise"
            assert (far > 0).float().mean() < 1e-3


@pytest.mark.parametrize("family", ["AutoencoderKLWan", "AutoencoderKLHunyuanVideo", "AutoencoderKLLTXVideo"])
def test_clips(family: str, tvae: Any, tmp_path: Path) -> None:
    """In steps, whole, and by frames."""
    TINY[family].build().save_pretrained(tmp_path / "vae")
    write_clip(tmp_path / "c.mkv", 9, sound=False, side=96)
    for folder, more in (("one", ()), ("all", ("--devices", 2, "--split", "rows"))):
        assert tvae("encode", "c.mkv", "--vae", "vae", "-o", folder, *more).returncode == 0
    same_latents(tmp_path / "one", tmp_path / "all")
    done = tvae("decode", "one/c.mkv.latents", "-o", "out", "--devices", 2, "--split", "rows", "--json")
    assert done.returncode == 0
    started = json.loads(done.stdout.splitlines()[0])
    assert (started["type"], started["items"]) == ("run_started", 1)
    assert (tmp_path / "out" / "c.mkv.mp4").exists()


def test_a_clip_frame_by_frame(tvae: Any, tmp_path: Path) -> None:
    write_clip(tmp_path / "c.mkv", 5, sound=False, side=96)
    for folder, more in (("one", ()), ("all", ("--devices", 2, "--split", "rows"))):
        assert tvae("encode", "c.mkv", "-o", folder, *more).returncode == 0
    same_latents(tmp_path / "one", tmp_path / "all")


def test_auto_and_items(tvae: Any, tmp_path: Path) -> None:
    """As many items as devices have one each; the only one goes to the first, unless it takes long."""
    source = photos(tmp_path / "in", 2)
    for n, (inputs, split, processes) in enumerate(
        [((source,), "auto", 2), (("in/0.png",), "items", 0), (("in/0.png",), "auto", 0), (("in/0.png",), "auto", 2)]
    ):
        before = len([*(tmp_path / "pids").iterdir()])
        words = "encode", *inputs, "-o", f"out{n}", "--devices", 2, "--split", split, "-v"
        done = tvae(*words, start=-1.0 if n == 3 else 4.5)
        assert done.returncode == 0, done.stderr
        assert len([*(tmp_path / "pids").iterdir()]) - before == processes


@POSIX
@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("dies", "was ended by SIGKILL"),
        ("hangs", "gave no sign of life for 8 seconds"),
        ("full", "out of memory on cpu"),
        ("wrong", "an illegal memory access was encountered"),
    ],
)
def test_one_fails(what: str, told: str, rank: str, tvae: Any, tmp_path: Path) -> None:
    """In the midst of the second picture: that one fails, and the rest is done."""
    source = photos(tmp_path / "in", 4)
    more = ("--devices", 2, "--split", "rows", "--batch", 1, "--json")
    done = tvae("encode", source, "-o", "out", *more, mode=(rank, what), patience=8.0 if what == "hangs" else 60.0)
    assert done.returncode == 3, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    failed = [event for event in events if event["type"] == "item_failed"]
    assert failed
    assert all(told in event["error"] for event in failed)
    assert all("\n" not in event["error"] for event in failed)
    assert events[-1]["done"] == 4 - len(failed) >= 2
    assert [event["type"] for event in events].count("run_started") == 1
    there = len(list((tmp_path / "out").iterdir()))
    assert there >= 4 - len(failed), "what was complete when the group ended stays"
    again = tvae("encode", source, "-o", "out", *more)
    counts = json.loads(again.stdout.splitlines()[-1])
    assert (counts["done"], counts["skipped"]) == (4 - there, there)


@POSIX
def test_a_run_that_is_killed(tvae: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process stays, and the folder in which they met goes with the next run."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    source = photos(tmp_path / "in", 4)
    more = ("encode", source, "-o", "out", "--devices", 2, "--split", "rows", "--batch", 1)
    tvae(*more, killed=True)
    assert len([*temporary.iterdir()]) == 1
    assert tvae(*more).returncode == 0
    assert [*temporary.iterdir()] == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--split", "rows"), "pass --devices, too"),
        (("--split", "rows", "--devices", "0"), "leaves nothing to compute on"),
        (("--split", "rows", "--devices", "cpu,cpu"), "names cpu twice"),
        (("--split", "rows", "--devices", "2", "--dtype", "int3"), "unknown dtype 'int3'"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], told: str, tvae: Any, tmp_path: Path) -> None:
    done = tvae("encode", photos(tmp_path / "in", 1), "-o", "out", *words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert told in done.stderr
    assert not (tmp_path / "out").exists()


def test_what_no_plan_fits(tvae: Any, tmp_path: Path) -> None:
    """All ranks find it out before they compute, and go on with the next item; of one item it is the request's."""
    source = photos(tmp_path / "in", 1)
    done = tvae("encode", source, "-o", "out", "--devices", 2, "--split", "rows", "--vram", "1MiB")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr


def test_fewer_rows_than_devices(tvae: Any, tmp_path: Path) -> None:
    done = tvae("encode", photos(tmp_path / "in", 1, height=8), "-o", "out", "--devices", 3, "--split", "rows")
    assert done.returncode == 0
    assert "only 1 of 3 devices share this: it has too few rows for more" in done.stderr
