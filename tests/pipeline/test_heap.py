"""Memory that is freed goes back to the system, where a budget counts resident memory."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

HOLES = """
import sys, torch
from tvae.pipeline.budget import _resident
from tvae.pipeline.heap import return_what_is_freed
if sys.argv[1] == "yes":
    return_what_is_freed()
large = torch.ones(30 << 18)
del large  # from here on glibc would keep blocks of up to 30 MiB
before = _resident()
kept, freed = [], []
for _ in range(100):
    freed.append(torch.ones(1 << 18))  # a mebibyte
    kept.append(torch.ones(1 << 12))  # 16 KiB that live on between them
del freed
print((_resident() - before) >> 20)
"""


@pytest.mark.slow  # two interpreters
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries do so by themselves")
def test_holes_between_what_lives_on_are_given_back() -> None:
    left = {}
    for asked in ("no", "yes"):
        run = subprocess.run([sys.executable, "-c", HOLES, asked], capture_output=True, text=True, check=True)
        left[asked] = int(run.stdout)
    assert left["yes"] < 10
    assert left["no"] > 50, "glibc needs no help any more"
