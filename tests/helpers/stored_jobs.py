"""What jobs whose outputs are in a store tell of themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from clips import write_clip
from job_files import photo

__all__ = ["COMMON", "COUNT", "Shelf", "counts", "encoded_and_back", "lines", "report"]

COUNT = 4
COMMON = 'device = "cpu"\nthreads = 2\nbatch = 1\n'


class Shelf(Protocol):
    """A bucket or a repository, seen by other code."""

    def url(self, key: str = "") -> str: ...

    def get(self, key: str) -> bytes: ...

    def names(self, prefix: str = "") -> list[str]: ...


def encoded_and_back(shelf: Shelf, here: Path) -> Path:
    """A job: photos and a clip to a store, and from there to pictures in it."""
    for number in range(COUNT):
        photo(here / f"in/{number}.png", number)
    write_clip(here / "in/c.mkv", 12, sound=False)
    latents, back = shelf.url("out/latents"), shelf.url("out/back")
    encode = f'[[step]]\noperation = "encode"\ninputs = "in"\noutput = "{latents}"\n'
    decode = f'[[step]]\noperation = "decode"\ninputs = "{latents}"\noutput = "{back}"\n'
    path = here / "job.toml"
    path.write_text(COMMON + encode + decode)
    return path


def lines(shelf: Shelf, folder: str, name: str = "manifest.jsonl") -> dict[str, dict[str, Any]]:
    """Of a folder's manifest, by their output. Each has one."""
    told = [json.loads(line) for line in shelf.get(f"{folder}/{name}").splitlines()]
    found = {line["output"]: line for line in told}
    assert len(found) == len(told)
    return found


def report(bucket: Shelf, folder: str) -> dict[str, Any]:
    """The only step of a folder's report, and how its run ended."""
    told = json.loads(bucket.get(f"{folder}/report.json"))
    (step,) = told["steps"]
    return {"ended": told["ended"], **step}


def counts(told: Any) -> list[tuple[int, int, int]]:
    """Of each step of a command with --json: done, skipped, failed."""
    steps = json.loads(told.stdout.splitlines()[-1])["steps"]
    return [(step["done"], step["skipped"], step["failed"]) for step in steps]
