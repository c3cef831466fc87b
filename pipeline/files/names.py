"""Names of files that are not finished: they say which process they belong to."""

from __future__ import annotations

import hashlib
import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

__all__ = ["PREFIX", "SUFFIX", "here", "owned_name"]

PREFIX, SUFFIX = ".tvae-", ".tmp"


def owned_name(random: str) -> str:
    """A file's name that says which process it belongs to."""
    return f"{PREFIX}{os.getpid()}-{here()}-{random}{SUFFIX}"


@cache
def here() -> str:
    """Where a process's number stands for one process: this machine since it was started, and this container."""
    facts = [platform.node()]
    with suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        facts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]
