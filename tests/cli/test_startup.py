"""The program answers at once when there is nothing to compute."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

PROGRAM = "from tvae.cli.app import main; main()"
HEAVY = ("torch", "av", "diffusers", "numpy", "PIL", "safetensors", "rich.progress", "tvae.pipeline")


def run(*arguments: str, code: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("arguments", [["--help"], ["encode", "--help"], ["--version"]])
def test_help_is_instant(arguments: list[str]) -> None:
    best = float("inf")
    for _ in range(5):
        begin = time.monotonic()
        assert run(*arguments).returncode == 0
        best = min(best, time.monotonic() - begin)
        if best < 0.5:
            break
    assert best < 0.5


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom tvae.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    for arguments in (["--help"], ["encode", "--help"], ["--version"], ["encode", "--bad-flag"]):
        assert "heavy: []" in run(*arguments, code=code).stdout


def test_a_traceback_is_never_the_answer() -> None:
    result = run("encode", "no-such-file")
    assert result.returncode == 2
    assert result.stderr.splitlines() == ["tvae: no-such-file does not exist"]
    assert result.stdout == ""
