"""Other processes on the same cores: threads wait asleep, unless the user has it otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

POLICY = """
import os, sys
import tvae.cli.app as program
program.whole = lambda: lambda: print(os.environ.get("OMP_WAIT_POLICY"), "torch" in sys.modules)
program.main()
"""
CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def policy(**chosen: str) -> str:
    env = {k: v for k, v in os.environ.items() if k not in CHOICES} | chosen
    done = subprocess.run([sys.executable, "-c", POLICY], capture_output=True, text=True, check=True, env=env)
    return done.stdout.strip()


def test_threads_wait_asleep_before_torch_is_imported() -> None:
    assert policy() == "PASSIVE False"


@pytest.mark.parametrize("name", CHOICES)
def test_what_the_user_has_chosen_stays(name: str) -> None:
    assert policy(**{name: "ACTIVE"}) == f"{'ACTIVE' if name == CHOICES[0] else None} False"


@contextmanager
def one_busy_process_on_each_core() -> Iterator[None]:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 256])
def test_a_busy_machine_takes_at_most_two_and_a_half_times_as_long(size: int, tmp_path: Path) -> None:
    """The whole command, its start included. Half of the cores' time is the other processes' own."""
    rng = np.random.default_rng(0)
    for n in range(max(8, 200 * 64 // size**2 * 64)):
        noise = rng.integers(0, 255, (size // 4, size // 4, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((size, size)).save(tmp_path / f"{n:03}.png")

    def seconds() -> float:
        command = [sys.executable, "-m", "tvae.cli", "encode", str(tmp_path), "-o", str(tmp_path / "out")]
        begin = time.monotonic()
        subprocess.run([*command, "--device", "cpu", "--overwrite", "-q"], check=True)
        return time.monotonic() - begin

    seconds()  # captures the graph
    idle = min(seconds() for _ in range(2))
    with one_busy_process_on_each_core():
        busy = min(seconds() for _ in range(2))
    assert busy < 2.5 * idle
