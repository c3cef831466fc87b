"""What jobs whose outputs are in a store tell of themselves."""

from __future__ import annotations

import json
from typing import Any, Protocol

__all__ = ["COMMON", "COUNT", "Shelf", "counts", "report"]

COUNT = 4
COMMON = 'device = "cpu"\nthreads = 2\nbatch = 1\n'


class Shelf(Protocol):
    """A bucket or a repository, seen by other code."""

    def url(self, key: str = "") -> str: ...

    def get(self, key: str) -> bytes: ...

    def names(self, prefix: str = "") -> list[str]: ...


def report(bucket: Shelf, folder: str) -> dict[str, Any]:
    """The only step of a folder's report, and how its run ended."""
    told = json.loads(bucket.get(f"{folder}/report.json"))
    (step,) = told["steps"]
    return {"ended": told["ended"], **step}


def counts(told: Any) -> list[tuple[int, int, int]]:
    """Of each step of a command with --json: done, skipped, failed."""
    steps = json.loads(told.stdout.splitlines()[-1])["steps"]
    return [(step["done"], step["skipped"], step["failed"]) for step in steps]
