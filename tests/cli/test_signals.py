"""Ctrl-C and SIGTERM in the middle of a clip: exit code, nothing half-done, and the same command goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from typer.testing import Result

CLIP = 80
"""Frames; the signal comes when half of them are done."""

WAITING = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and so their children, ignore it
sys.path.insert(0, {folder!r})
from stand_in import StandIn
import tvae.pipeline.session.model as opening
class Waiting(StandIn):
    left = 40
    def encode(self, x):
        while self.left <= 0:
            time.sleep(0.02)  # for the signal
        self.left -= 1
        return super().encode(x)
opening.open_model = lambda name, **options: Waiting(name)
from tvae.cli.app import main
main()
"""


SIGNALS = pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
POSIX = pytest.mark.skipif(os.name == "nt", reason="signals of this kind do not exist there")


@pytest.mark.long
@POSIX
@SIGNALS
def test_signals(tvae: Callable[..., Result], tmp_path: Path, number: signal.Signals, code: int) -> None:
    source, out = tmp_path / "c.mkv", tmp_path / "out"
    with av.open(str(source), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width = stream.height = 16
        for _ in range(CLIP):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")))
        container.mux(stream.encode())
    arguments = ["encode", str(source), "-o", str(out), "--json"]
    command = [sys.executable, "-c", WAITING.format(folder=str(Path(__file__).parents[1] / "helpers")), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(out.rglob("000000.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    assert len(errors.splitlines()) == 1
    assert "run the same command to continue" in errors
    assert not list(out.rglob("index.json"))
    assert not list(out.rglob("*.tmp"))
    again = tvae(*arguments)
    assert again.exit_code == 0, again.stderr
    first = next(json.loads(line)["done"] for line in again.stdout.splitlines() if '"progress"' in line)
    assert first > 16
    assert json.loads(next(out.rglob("index.json")).read_text())["frames"] == CLIP


@POSIX
@SIGNALS
def test_a_benchmark_is_not_gone_on_with(
    tvae: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    monkeypatch.setattr("tvae.pipeline.bench.io.bench_io", lambda *_args, **_more: signal.raise_signal(number))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        stopped = tvae("bench", "io")
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopped.exit_code == code
    assert stopped.stderr == f"tvae: {'interrupted' if number == signal.SIGINT else 'terminated'}\n"


ENDING = """
import atexit, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import tvae.cli.reporting
def interrupted(_text):
    atexit.register(lambda: (print("ending", flush=True), time.sleep(30)))
    raise {error}
tvae.cli.reporting.tell = interrupted
sys.argv = ["tvae", "models"]
from tvae.cli.__main__ import program
program()
"""


@pytest.mark.long
@POSIX
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "tvae.cli.exit_codes.Terminated"])
def test_a_second_signal_ends_what_is_ending(number: signal.Signals, error: str) -> None:
    """Without another line, and to a shell with the same code: 128 and the signal's number."""
    command = [sys.executable, "-c", ENDING.format(error=error)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ending\n"
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert process.returncode == -number
    assert said in ("tvae: interrupted\n", "tvae: terminated\n")


TWICE = """
import sys
import tvae.cli.reporting
def raising(error):
    def raises(_text):
        raise error
    return raises
tvae.cli.reporting.tell, tvae.cli.reporting.say = raising({first}), raising({second})
sys.argv = ["tvae", "models"]
from tvae.cli.__main__ import program
program()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("second", "code"), [("KeyboardInterrupt", 130), ("tvae.cli.exit_codes.Terminated", 143)])
@pytest.mark.parametrize("first", ["KeyboardInterrupt", "tvae.cli.exit_codes.Terminated"])
def test_a_second_signal_while_the_first_is_told(first: str, second: str, code: int) -> None:
    """SIGTERM gave a traceback, and the code of an internal error."""
    command = [sys.executable, "-c", TWICE.format(first=first, second=second)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert (process.returncode, process.stderr) == (code, "")


DROPPED = """
import signal, sys, time, weakref
signal.signal(signal.SIGINT, signal.default_int_handler)
import tvae.cli.reporting
class Thing:
    pass
def dropping(_text):
    things = [Thing() for _ in range(3)]
    kept = [weakref.ref(one, lambda _: signal.raise_signal(signal.{name})) for one in things]
    things.clear()
    time.sleep(30)
tvae.cli.reporting.tell = dropping
sys.argv = ["tvae", "models"]
from tvae.cli.__main__ import program
program()
"""


@pytest.mark.long
@POSIX
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_what_drops_errors_is_not_lost(number: signal.Signals, code: int) -> None:
    """Python raises it in a callback of a weak reference, and drops what is raised there."""
    command = [sys.executable, "-c", DROPPED.format(name=number.name)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert process.returncode in (code, -number)
    assert process.stderr in ("tvae: interrupted\n", "tvae: terminated\n")
