"""Disks that fill up, rights that are lost, folders that vanish, while one item of a run is worked on.

A fault is given the run's events: it strikes from the item's start to its end, and others that are written meanwhile.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import av
import pytest

from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, ItemStarted, Progress, checkpoint
from tvae.pipeline.latents import tensor_file

PAGE = 4096


class Fault:
    """Does nothing. ``victim``: the source of the item that it strikes."""

    def __init__(self, victim: Path) -> None:
        self.victim, self.armed = victim, False

    def __call__(self, event: Event) -> None:
        if getattr(event, "input", None) != self.victim:
            return
        if isinstance(event, ItemStarted):
            self.armed = True
            self.strike(event.output)
        elif isinstance(event, (ItemDone, ItemFailed)):
            self.armed = False
            self.heal()
        if isinstance(event, (ItemStarted, Progress)):
            self.passing()

    def strike(self, output: Path) -> None:
        """The item begins."""

    def passing(self) -> None:
        """An event of the item before its output is complete."""

    def heal(self) -> None:
        """The item has ended, or the run; to be called in any case."""


class FullDisk(Fault):
    """Leaves so many pages of a mounted file system free."""

    def __init__(self, victim: Path, mounted: Path, pages: int) -> None:
        super().__init__(victim)
        self._ballast, self._pages = mounted / "ballast", pages

    def strike(self, output: Path) -> None:
        state = os.statvfs(self._ballast.parent)
        with suppress(OSError):  # other items take room at the same time: then it is full, too
            self._ballast.write_bytes(bytes(max(0, state.f_bavail * state.f_frsize - self._pages * PAGE)))

    def heal(self) -> None:
        self._ballast.unlink(missing_ok=True)


class ShortFiles(Fault):
    """No file may have more bytes than this (RLIMIT_FSIZE): a full disk where nothing can be mounted."""

    def __init__(self, victim: Path, most: int) -> None:
        super().__init__(victim)
        self._most = most

    def strike(self, output: Path) -> None:
        self._limit(self._most)

    def heal(self) -> None:
        self._limit(None)

    @staticmethod
    def _limit(most: int | None) -> None:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard if most is None else most, hard))


class Denied(Fault):
    """From the n-th time on, or then alone, no file below a folder can be opened to be written, made or renamed."""

    def __init__(self, victim: Path, below: Path, number: int, once: bool) -> None:
        super().__init__(victim)
        self._below, self._number, self._once, self._count = str(below), number, once, 0

    @contextmanager
    def watching(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """Meanwhile every way to write goes through this."""
        with patch.context() as patched:
            for owner, name, place in (
                (builtins, "open", 0),
                (io, "open", 0),
                (os, "open", 0),
                (os, "mkdir", 0),
                (os, "replace", 1),
                (av, "open", 0),
                (tensor_file, "save_file", 1),
                (checkpoint, "save_file", 1),
            ):
                patched.setattr(owner, name, self._guarded(getattr(owner, name), place))
            yield

    def _guarded(self, original: Callable[..., Any], place: int) -> Callable[..., Any]:
        def guarded(*args: Any, **more: Any) -> Any:
            path = str(args[place]).removeprefix("file:") if len(args) > place else ""
            if self.armed and path.startswith(self._below):
                self._count += 1
                if self._count == self._number or (self._count > self._number and not self._once):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return original(*args, **more)

        return guarded


class Removed(Fault):
    """The output's folder goes at the n-th event of the item, or the first after that where its output is begun (a lock
    alone is made once more, with its folder); ``instead``: a file stands there from the n-th on."""

    def __init__(self, victim: Path, folder: Path, number: int, instead: bool) -> None:
        super().__init__(victim)
        self._folder, self._left, self._instead, self._patience = folder, number, instead, 2.0

    def passing(self) -> None:
        self._left -= 1
        if self._left > 0 or not (self._left == 0 if self._instead else self._has_begun()):
            return
        if not self._instead:
            self._left = 1 << 30
        aside = self._folder.with_name("moved away")  # at once: a file that is just being written keeps no folder
        if self._folder.exists():
            self._folder.rename(aside)
        if self._instead:
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            self._folder.touch()
        shutil.rmtree(aside, ignore_errors=True)

    def _has_begun(self) -> bool:
        """What is written in the background may not have, on a busy machine: it gets some time, and a later event."""
        while not (begun := any(path.suffix != ".lock" for path in self._folder.glob("*"))) and self._patience > 0:
            time.sleep(0.01)
            self._patience -= 0.01
        return begun

    def heal(self) -> None:
        if self._folder.is_file():
            self._folder.unlink()


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """A small file system of its own; the test is skipped where none may be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if (
        sys.platform != "linux"
        or shutil.which("mount") is None
        or subprocess.run(command, capture_output=True).returncode
    ):
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
