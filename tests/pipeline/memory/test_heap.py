"""Memory that is freed goes back to the system, where a budget counts resident memory."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries do so by themselves")

HOLES = """
import torch
from tvae.pipeline.memory.limits import _resident, overhead
from tvae.pipeline.memory.heap import return_what_is_free
large = torch.ones(30 << 18)
del large  # from here on glibc keeps blocks of up to 30 MiB
before = _resident()
kept, freed = [], []
taken = overhead(torch.device("cpu"), 0).named(0)
for _ in range(100):
    freed.append(torch.ones(1 << 18))  # a mebibyte
    kept.append(torch.ones(1 << 12))  # 16 KiB that live on between them
del freed
left = _resident() - before
asked = overhead(torch.device("cpu"), 0).named(0) - taken
return_what_is_free()
print(left >> 20, (_resident() - before) >> 20, asked >> 20)
"""


@pytest.mark.slow  # an interpreter
@glibc
def test_holes_between_what_lives_on_are_given_back() -> None:
    run = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    left, then, asked = map(int, run.stdout.split())
    assert left > 50, "glibc needs no help any more"
    assert then < 10
    assert asked < 10, "a plan counts what is free"
