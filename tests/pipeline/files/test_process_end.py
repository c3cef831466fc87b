"""How a process ended, in words."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tvae.pipeline.files.process_end import end_of


@pytest.mark.parametrize(("code", "words"), [(0, "code 0"), (255, "code 255"), (0xC0000005, "code 0xc0000005")])
def test_codes(code: int, words: str) -> None:
    assert end_of(code) == words


@pytest.mark.skipif(sys.platform == "win32", reason="no signals there")
def test_signals() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    process.kill()
    assert end_of(process.wait()) == signal.SIGKILL.name
    assert end_of(-200) == "signal 200"
