"""Names of files that are not finished: they say which process they belong to."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

__all__ = ["PREFIX", "here", "owned_name", "owner", "owner_of"]

PREFIX = ".tvae-"
_OWNED = re.compile(r"\.tvae-([0-9]+-[0-9a-f]{8})-[0-9a-f]{12}\.tmp")


def owner() -> str:
    """This process, as names and locks say it."""
    return f"{os.getpid()}-{here()}"


def owned_name(random: str) -> str:
    """A file's name that says which process it belongs to."""
    return f"{PREFIX}{owner()}-{random}.tmp"


def owner_of(name: str) -> str | None:
    """The ``owner`` whose temporary file has this name."""
    found = _OWNED.fullmatch(name)
    return None if found is None else found[1]


@cache
def here() -> str:
    """Where a process's number stands for one process: this machine since it was started, and this container."""
    facts = [platform.node()]
    with suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        facts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]
