"""The program's end: all that others rely on is done, and nothing is taken apart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tvae.pipeline.jobs import Job
from tvae.pipeline.jobs.devices.messages import Begin, Finished, NoMore, receive, send
from tvae.pipeline.jobs.devices.started import COMMAND

PROGRAM = """
import atexit, logging, logging.handlers, sys, threading, time, types
from tvae.pipeline.settings.leaving import leaving

if {heavy}:
    sys.modules["torch"] = types.ModuleType("torch")

class Held:
    def __del__(self):
        sys.stderr.write("taken apart\\n")

def late():
    time.sleep(0.3)
    print("thread")

def main():
    log = logging.getLogger("tvae")
    log.addHandler(logging.handlers.MemoryHandler(99, target=logging.FileHandler({log!r})))
    log.warning("logged")
    threading.held = Held()
    atexit.register(print, "atexit")
    threading.Thread(target=late).start()
    print("written", "x" * 100_000)
    {end}

with leaving():
    main()
"""


def run(tmp_path: Path, end: str, *, heavy: bool = True) -> subprocess.CompletedProcess[str]:
    code = PROGRAM.format(heavy=heavy, log=str(tmp_path / "log"), end=end)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)


@pytest.mark.parametrize(
    ("end", "code"), [("pass", 0), ("sys.exit(0)", 0), ("sys.exit(3)", 3), ("sys.exit()", 0), ("sys.exit(130)", 130)]
)
def test_what_others_rely_on_is_done(end: str, code: int, tmp_path: Path) -> None:
    done = run(tmp_path, end)
    assert done.returncode == code
    assert [line.split(" ")[0] for line in done.stdout.splitlines()] == ["written", "thread", "atexit"]
    assert len(done.stdout) > 100_000
    assert (tmp_path / "log").read_text() == "logged\n"
    assert done.stderr == ""


def test_a_program_without_pytorch_ends_as_ever(tmp_path: Path) -> None:
    done = run(tmp_path, "sys.exit(3)", heavy=False)
    assert (done.returncode, done.stderr) == (3, "taken apart\n")
    assert (tmp_path / "log").read_text() == "logged\n"


@pytest.mark.parametrize(
    ("end", "code", "told"),
    [("raise KeyError('x')", 1, "KeyError: 'x'"), ("sys.exit('why')", 1, "why")],
)
def test_an_end_without_a_code_is_pythons_own(end: str, code: int, told: str, tmp_path: Path) -> None:
    done = run(tmp_path, end)
    assert done.returncode == code
    assert told in done.stderr
    assert "taken apart" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pipe of POSIX")
def test_nobody_reads_what_is_written(tmp_path: Path) -> None:
    """As without: Python says so, with its own code."""
    code = PROGRAM.format(heavy=True, log=str(tmp_path / "log"), end="sys.exit(0)")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        told = process.stderr.read().decode()
        assert process.wait(60) != 0
    assert "BrokenPipeError" in told


HELD = """
import sys, threading
class Held:
    def __del__(self):
        sys.stderr.write("taken apart\\n")
threading.held = Held()
"""


@pytest.mark.long
def test_the_program_ends_so() -> None:
    code = HELD + "import torch; sys.argv = ['tvae', '--version']; from tvae.cli.__main__ import program; program()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("tvae ")


@pytest.mark.long
def test_a_program_that_calls_a_command_goes_on_and_ends_as_it_likes() -> None:
    code = """
import sys, torch
from tvae.cli.app import main
sys.argv = ["tvae", "encode", "none.png"]
try:
    main()
except SystemExit as end:
    print("ended with", end.code)
sys.exit(7)
"""
    done = subprocess.run([sys.executable, "-c", HELD + code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (7, "ended with 2\n")
    assert "taken apart" in done.stderr


@pytest.mark.long
def test_the_process_of_a_device_ends_so(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HELD)
    paths = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    pipe = subprocess.PIPE
    with subprocess.Popen(
        COMMAND, stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, "PYTHONPATH": paths}
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        send(process.stdin, Begin(Job("encode", ("none",), device="cpu"), None))
        send(process.stdin, NoMore())
        process.stdin.flush()
        while not isinstance(receive(process.stdout), Finished):
            pass
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0
