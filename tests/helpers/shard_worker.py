"""Runs that fill shards and are killed at a file operation, each in a process forked from this one, which imports once.

``python shard_worker.py IN OUT MOST`` caches IN into OUT-0, then, for so many numbers of operations below the
folder, into OUT-NUMBER: a run that is killed at that operation, and one to the end. Where a folder OUT-before is there,
each begins as a copy of it. Prints the numbers.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))

from file_operations import Operations
from process_copy import process_copy
from stand_in import StandIn

from tvae.pipeline.caches import Buckets, CacheRequest
from tvae.pipeline.jobs import Job, run_job
from tvae.pipeline.jobs import shards as _once

assert _once


def cache(source: str, output: str) -> None:
    request = CacheRequest("webdataset", buckets=Buckets(False), shards="25KB")
    model: Any = StandIn()
    done = run_job(
        Job("cache", (source,), output=output, size=(64, 64), cache=request), lambda event: None, model=model
    )
    assert done.failed == 0


def forked(source: str, output: str, number: int, counts: Path) -> int:
    """Status of the process, which writes the number of its operations."""
    child = process_copy()
    if child:
        return os.waitpid(child, 0)[1]
    code = 1
    try:
        operations = Operations(Path(output), "kill", number)
        cache(source, output)
        counts.write_text(str(operations.count))
        code = 0
    finally:
        os._exit(code)


def begun(output: str, number: int) -> str:
    """The folder of a number."""
    place, before = f"{output}-{number}", Path(f"{output}-before")
    if before.is_dir():
        shutil.copytree(before, place)
    return place


def main(source: str, output: str, most: str) -> None:
    counts = Path(f"{output}-count")
    assert forked(source, begun(output, 0), 0, counts) == 0
    count = int(counts.read_text())
    numbers = sorted({1 + n * (count - 1) // int(most) for n in range(int(most) + 1)})
    for number in numbers:
        place = begun(output, number)
        assert os.WIFSIGNALED(forked(source, place, number, counts))
        assert forked(source, place, 0, counts) == 0
    print(*numbers)


if __name__ == "__main__":
    main(*sys.argv[1:])
