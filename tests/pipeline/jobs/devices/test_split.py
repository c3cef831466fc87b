"""When several devices share the rows of each item, and when whole items."""

from __future__ import annotations

from typing import Any

import pytest

from tvae.pipeline.caches.request import CacheRequest
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Job
from tvae.pipeline.jobs.devices.split import shares_rows

CPUS = ["cpu:0", "cpu:1", "cpu:2"]


def job(split: Any, operation: Any = "encode", **more: Any) -> Job:
    return Job(operation, ("a.png",), devices="3", split=split, **more)


@pytest.mark.parametrize(
    ("split", "items", "devices", "rows"),
    [
        ("auto", 1, CPUS, True),
        ("auto", 2, CPUS, True),
        ("auto", 3, CPUS, False),
        ("auto", 0, CPUS, False),
        ("auto", 1, ["cuda:0", "cuda:3"], True),
        ("auto", 1, ["cuda:0", "cpu"], False),
        ("auto", 1, ["xpu:0", "xpu:1"], False),
        ("items", 1, CPUS, False),
        ("rows", 1, CPUS, True),
        ("rows", 600, CPUS, True),
        ("rows", 1, ["cpu"], False),
    ],
)
def test_what_is_shared(split: str, items: int, devices: list[str], rows: bool) -> None:
    assert shares_rows(job(split), items, devices) == rows


def test_rows_that_cannot_be() -> None:
    with pytest.raises(UsageError, match=r"different kinds \(cpu, cuda\) cannot share rows"):
        shares_rows(job("rows"), 1, ["cuda:0", "cpu"])
    with pytest.raises(UsageError, match="kind xpu cannot share rows; name devices of one kind, cuda or cpu"):
        shares_rows(job("rows"), 1, ["xpu:0", "xpu:1"])
    with pytest.raises(UsageError, match="pass --devices, too"):
        Job("encode", ("a.png",), split="rows")
    with pytest.raises(UsageError, match="split 'columns' is not one of auto, items, rows"):
        job("columns")


def test_a_cache_is_of_whole_items() -> None:
    request = CacheRequest("kohya")
    assert not shares_rows(job("auto", "cache", cache=request), 1, CPUS)
    with pytest.raises(UsageError, match="made of whole items"):
        job("rows", "cache", cache=request)
