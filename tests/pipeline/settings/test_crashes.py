"""A library that crashes in a command says where."""

from __future__ import annotations

import subprocess
import sys

import pytest

CRASHES = "import ctypes; reads_nowhere = lambda: ctypes.string_at(0); reads_nowhere()"


def ended(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)


def test_where_its_threads_were() -> None:
    told = f"from tvae.pipeline.settings.crashes import tells_of_crashes; tells_of_crashes(); {CRASHES}"
    done = ended(told)
    assert done.returncode not in (0, 1)
    assert "most recent call first" in done.stderr
    assert "in <lambda>" in done.stderr
    assert "most recent call first" not in ended(CRASHES).stderr


@pytest.mark.long
@pytest.mark.parametrize(
    "begin",
    [
        "import sys; sys.argv = ['tvae', '--version']; from tvae.cli.app import main; main()",
        "from tvae.pipeline.jobs.devices.worker import main; import sys; sys.stdin.close(); main()",
    ],
    ids=["a command", "the process of a device"],
)
def test_programs_do(begin: str) -> None:
    told = """
import atexit, faulthandler, os, sys

def told():
    print("does", faulthandler.is_enabled(), file=sys.stderr)

def ends(code, end=os._exit):
    told()
    end(code)

os._exit = ends
atexit.register(told)
"""
    assert "does True" in ended(told + begin).stderr


def test_without_a_place_to_tell_it_begins_all_the_same() -> None:
    begins = "from tvae.pipeline.settings.crashes import *; tells_of_crashes(); print(1)"
    assert ended(f"import sys; sys.stderr = None; {begins}").stdout == "1\n"
