"""Jobs on a pseudo-terminal: what stands on it in the midst and at the end, and how Ctrl-C leaves it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="needs pseudo-terminals")]

HELPERS = Path(__file__).parents[1] / "helpers"
COLUMNS, ROWS = 100, 40
PHOTOS = 30
SIMPLE = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and so their children, ignore it
sys.path.insert(0, {folder!r})
from stand_in import StandIn
import tvae.pipeline.session.model as opening
class Slow(StandIn):
    def encode(self, x):
        time.sleep(0.1)
        return super().encode(x)
opening.open_model = lambda name, **options: Slow(name)
from tvae.cli.app import main
main()
"""
DEVICES = """
import os, sys
sys.path.insert(0, {folder!r})
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), {folder!r})))
from tvae.pipeline.jobs.devices import names, started
names.present_devices = lambda _text: ["cpu:0", "cpu:1"]
started.COMMAND = (sys.executable, {folder!r} + "/device_worker.py", "slow")
from tvae.cli.app import main
main()
"""


class OnTerminal:
    """A program on a terminal of its own. ``seen``: all that it has written."""

    def __init__(self, code: str, arguments: list[str]) -> None:
        import termios

        self._master, self._slave = os.openpty()
        termios.tcsetwinsize(self._slave, (ROWS, COLUMNS))
        self._settings: Callable[[], Any] = lambda: termios.tcgetattr(self._slave)
        self._before = self._settings()
        self.seen = b""
        environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        environment = {name: value for name, value in environment.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code.format(folder=str(HELPERS)), *arguments],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env=environment,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._master, 65536)
            except OSError:
                return
            self.seen += piece

    def stands(self) -> Terminal:
        """What can be seen now; of a sequence that has not come whole nothing."""
        text = self.seen.decode("utf-8", errors="ignore")
        start = text.rfind("\x1b")
        whole = start < 0 or any(letter.isalpha() for letter in text[start:])
        terminal = Terminal(COLUMNS)
        terminal.feed(text if whole else text[:start])
        return terminal

    def until(self, met: Callable[[list[str]], object]) -> list[str]:
        """The lines, once they are as wanted."""
        end = time.monotonic() + 90
        while not met(lines := self.stands().lines):
            assert time.monotonic() < end, lines
            assert self.process.poll() is None, lines
            time.sleep(0.05)
        return lines

    def ended(self) -> tuple[int, list[str]]:
        """Its exit code and what stands there; the terminal is as it was before."""
        code = self.process.wait(90)
        time.sleep(0.2)
        found = self.stands()
        assert found.cursor_shown
        assert self._settings() == self._before
        return code, found.lines

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._slave)
        os.close(self._master)


@contextmanager
def running(code: str, *arguments: object) -> Iterator[OnTerminal]:
    program = OnTerminal(code, [*map(str, arguments)])
    try:
        yield program
    finally:
        program.close()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """All good but one; one of a size that is padded, with a warning."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(PHOTOS):
        levels = np.random.default_rng(number).integers(0, 256, (16, 15 if number == 7 else 32, 3), dtype=np.uint8)
        Image.fromarray(levels).save(folder / f"{number:02d}.png")
    (folder / "03.png").write_bytes(b"no picture")
    return folder


@pytest.fixture
def job(photos: Path, tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(
        f"batch = 1\n[[step]]\noperation = 'encode'\ninputs = ['{photos}']\noutput = '{tmp_path / 'out'}'\n",
        encoding="utf-8",
    )
    return path


def is_full(lines: list[str]) -> bool:
    return any(line.startswith("busy: ") for line in lines) and any(line.startswith("failed: 1") for line in lines)


def both_busy(lines: list[str]) -> bool:
    """A call sleeps 0.3 s, and little else is done."""
    told = next((line.replace(",", "").split() for line in lines if line.startswith("busy: ")), [])
    return sorted(told[1::3]) == ["cpu:0", "cpu:1"] and all(int(share) > 30 for share in told[2::3])


def check_end(lines: list[str]) -> None:
    """A line for each item, whole, and nothing of the region."""
    told = "\n".join(lines)
    for number in range(PHOTOS):
        assert told.count(f"{number:02d}.png -> ") == (number != 3)
    assert told.count("03.png: ") == 1
    assert [line for line in lines if line.startswith("tvae: warning: ") and "07.png" in line]
    for word in ("items/s", "busy: ", "stages: ", "failed: ", "━"):
        assert word not in told
    assert f"{PHOTOS - 1} done, 1 failed in " in told


def test_a_batch(job: Path) -> None:
    with running(SIMPLE, "batch", job) as program:
        lines = program.until(is_full)
        (bar,) = (line for line in lines if "items/s" in line)
        assert bar.startswith("encode ")
        assert f"/{PHOTOS} " in bar
        at = lines.index(bar)
        assert lines[at + 1].startswith("busy: cpu ")
        assert lines[at + 2].startswith("stages: reading ")
        assert lines[at + 3] == "failed: 1"
        assert lines[at + 4].startswith("  03.png: ")
        assert len(lines) == at + 5
        code, lines = program.ended()
    assert code == 3
    check_end(lines)


def test_ctrl_c(job: Path, tmp_path: Path) -> None:
    with running(SIMPLE, "batch", job) as program:
        program.until(is_full)
        program.process.send_signal(signal.SIGINT)
        code, lines = program.ended()
    assert code == 130
    assert lines[-1].endswith("run the same command to continue")
    assert not [line for line in lines if "items/s" in line or line.startswith(("busy: ", "failed: "))]
    outputs = {path.name.partition(".safetensors")[0] for path in (tmp_path / "out").glob("*.safetensors")}
    told = {word.rpartition("/")[2] for line in lines if " -> " in line for word in [line.partition(" -> ")[0]]}
    assert told
    assert told <= outputs


def test_several_devices(photos: Path, tmp_path: Path) -> None:
    with running(DEVICES, "encode", photos, "-o", tmp_path / "out", "--batch", 1, "--devices", 2) as program:
        program.until(both_busy)
        code, lines = program.ended()
    assert code == 3
    check_end(lines)
