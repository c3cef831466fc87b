"""``--devices`` from the command line: what is refused, what is shown, and what signals leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from living_processes import living
from PIL import Image
from typer.testing import Result

from tvae.cli.render import Display
from tvae.pipeline.jobs import DeviceLost, ItemStarted, Retried

HELPERS = Path(__file__).parents[1] / "helpers"
Tvae = Callable[..., Result]
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and so their children, ignore it
from tvae.pipeline.jobs.devices import names, started
names.present_devices = lambda _text: ["cpu:0", "cpu:1"]
started.COMMAND = (sys.executable, {worker!r}, {mode!r})
from tvae.cli.app import main
main()
"""
POSIX = pytest.mark.skipif(os.name == "nt", reason="signals of this kind do not exist there")
PHOTOS = 40


def program(mode: str, *arguments: object, pids: Path) -> subprocess.Popen[str]:
    """The program with two devices, whose processes leave their numbers in a folder."""
    pids.mkdir(exist_ok=True)
    code = PROGRAM.format(worker=str(HELPERS / "device_worker.py"), mode=mode)
    command = [sys.executable, "-c", code, *map(str, arguments), "--devices", "2"]
    paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(HELPERS)]
    environment = os.environ | {"TVAE_TEST_PIDS": str(pids), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


def until(met: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(PHOTOS):
        levels = np.random.default_rng(number).integers(0, 256, (16, 32, 3), dtype=np.uint8)
        Image.fromarray(levels).save(folder / f"{number:02d}.png")
    return folder


@POSIX
@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals(tvae: Tvae, photos: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    out, pids = tmp_path / "out", tmp_path / "pids"
    run = program("slow", "encode", photos, "-o", out, "--json", "--batch", 1, pids=pids)
    until(lambda: len(list(out.glob("*.safetensors"))) > 2)
    run.send_signal(number)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == code, errors
    assert len(errors.splitlines()) == 1
    assert "run the same command to continue" in errors
    assert len(list(pids.iterdir())) == 2
    assert living(pids) == []
    done = len(list(out.glob("*.safetensors")))
    assert 2 < done < PHOTOS
    assert len(list(out.iterdir())) == done
    again = tvae("encode", photos, "-o", out, "--json")
    counts = json.loads(again.stdout.splitlines()[-1])
    assert (counts["done"], counts["skipped"]) == (PHOTOS - done, done)


@POSIX
@pytest.mark.slow
def test_a_run_that_is_killed_leaves_no_process(photos: Path, tmp_path: Path) -> None:
    out, pids = tmp_path / "out", tmp_path / "pids"
    run = program("slow", "encode", photos, "-o", out, "--batch", 1, pids=pids)
    until(lambda: len(list(out.glob("*.safetensors"))) > 2)
    run.kill()
    run.communicate(timeout=60)
    until(lambda: living(pids) == [])
    assert len(list(out.glob("*.safetensors"))) < PHOTOS
    assert [path for path in out.iterdir() if path.suffix in (".tmp", ".lock")] == []


@POSIX
@pytest.mark.slow
def test_no_device_is_left(photos: Path, tmp_path: Path) -> None:
    Image.new("RGB", (64, 16)).save(photos / "00.png")
    Image.new("RGB", (64, 16)).save(photos / "01.png")
    run = program("dies", "encode", photos, "-o", tmp_path / "out", "--batch", 1, "--json", pids=tmp_path / "pids")
    events, errors = run.communicate(timeout=120)
    assert run.returncode == 1
    last = errors.splitlines()[-1]
    assert last.startswith("tvae: no device is left, cpu:")
    assert "internal error" not in errors
    assert "Traceback" not in errors
    kinds = [json.loads(line)["type"] for line in events.splitlines()]
    assert kinds.count("device_lost") == 2
    assert kinds[-1] == "error"
    assert living(tmp_path / "pids") == []


@pytest.mark.parametrize(
    ("devices", "told"),
    [
        (["--devices", "0"], "--devices 0 leaves nothing to compute on"),
        (["--devices", "999"], "more devices than there are here"),
        (["--devices", "cpu,cpu"], "names cpu twice"),
        (["--devices", "cpu,gpu"], "'gpu' is no device"),
        (["--devices", "2", "--device", "cpu"], "cannot be used together"),
    ],
)
@pytest.mark.parametrize("operation", ["encode", "roundtrip"])
def test_what_is_refused(
    tvae: Tvae, photo: Path, tmp_path: Path, operation: str, devices: list[str], told: str
) -> None:
    result = tvae(operation, photo, "-o", tmp_path / "out", *devices)
    assert result.exit_code == 2
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_lost_device_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with Display(as_json=True, quiet=True, verbose=False, progress=False) as display:
        display.show(DeviceLost("cuda:1", "its process was ended by SIGKILL"))
    out, errors = capsys.readouterr()
    assert json.loads(out) == {
        "type": "device_lost",
        "device": "cuda:1",
        "error": "its process was ended by SIGKILL",
    }
    assert errors.startswith("tvae: warning: cuda:1 is lost (its process was ended by SIGKILL)")


def test_a_clip_that_is_done_again_has_one_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with Display(as_json=True, quiet=True, verbose=False, progress=False) as display:
        for _ in range(2):
            display.show(ItemStarted(Path("clip.mp4"), 3, Path("out"), "video", 9))
            display.show(Retried(Path("clip.mp4"), 3, "its worker was lost"))
        assert display._dashboard._bars.tasks == []
    told = json.loads(capsys.readouterr().out.splitlines()[1])
    assert told == {"type": "warning", "input": "clip.mp4", "index": 3, "message": "its worker was lost"}
