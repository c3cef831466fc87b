"""The process of a device whose VAE is the stand-in; its argument says what happens to it.

``as-it-is``; ``dies``: it is killed while it computes a picture of 8 columns of latents; ``hangs-up``: the same, and
the device does not answer any more; ``hangs``: the call never ends; ``stops``: the process is stopped, all threads at
once; ``crashes``: the process is killed when it opens such a picture by itself, and ``crashes-anywhere`` when it opens
it in any way; ``dies-reading``: when it reads the file poison.png by itself; ``unsupported``: every call is refused;
``slow``: a call takes a while; ``long``: and much longer, but shows that it gets on; ``for-one``: the device is taken
by the first process that makes the folder TVAE_TEST_TAKEN, and refused to others; ``for-nobody``: it is refused to all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from stand_in import StandIn

import tvae.pipeline.session.model as opening
from tvae.pipeline.errors import UnsupportedOp, UsageError
from tvae.pipeline.files.pulse import beat
from tvae.pipeline.jobs.devices import alive, worker
from tvae.pipeline.media import sandbox

POISON = 64
"""Columns of pixels of a picture that something happens to."""


class Disturbed(StandIn):
    """The stand-in, and what happens to it."""

    def encode(self, x: Any) -> Any:
        mode = sys.argv[1]
        if mode == "slow":
            time.sleep(0.3)
        if mode == "long":
            for _ in range(30):
                time.sleep(0.1)
                beat()
        if mode == "unsupported":
            raise UnsupportedOp("aten.fft", "encoder.mid")
        if x.shape[-1] == POISON and mode in ("dies", "stops"):
            os.kill(os.getpid(), signal.SIGKILL if mode == "dies" else signal.SIGSTOP)
        if x.shape[-1] == POISON and mode == "hangs":
            threading.Event().wait()
        if x.shape[-1] == POISON and mode == "hangs-up":
            worker._answers = lambda _vaes: False
            raise RuntimeError("an illegal memory access was encountered\nand more lines")
        return super().encode(x)


def opened(name: str, **options: Any) -> StandIn:
    if options["dtype"] not in (None, "float32"):
        raise UsageError(f"unknown dtype '{options['dtype']}'")
    if sys.argv[1] == "for-nobody" or (sys.argv[1] == "for-one" and not taken()):
        raise RuntimeError("CUDA-capable device(s) is/are busy or unavailable\nand more lines")
    return Disturbed(name)


def taken() -> bool:
    """Is the device this process's from now on? Facts are asked for, too."""
    folder = Path(os.environ["TVAE_TEST_TAKEN"])
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        (folder / str(os.getpid())).touch()
    return (folder / str(os.getpid())).exists()


def read(path: Path, *more: Any, **named: Any) -> Any:
    if path.name == "poison.png":
        os.kill(os.getpid(), signal.SIGKILL)
    return open_here(path, *more, **named)


def crashing(opening: Any) -> Any:
    """What opens files, until one is of so many columns."""

    def opened(*args: Any, **options: Any) -> Any:
        reader = opening(*args, **options)
        if reader.info.width == POISON:
            os.kill(os.getpid(), signal.SIGKILL)
        return reader

    return opened


if __name__ == "__main__":
    alive.BEAT_SECONDS = 0.1
    open_here = sandbox.open_here
    if sys.argv[1] == "dies-reading":
        sandbox.open_here = read
    if sys.argv[1] == "crashes":
        sandbox.open_here = crashing(sandbox.open_here)
    if sys.argv[1] == "crashes-anywhere":
        sandbox.Sandbox.open_reader = crashing(sandbox.Sandbox.open_reader)  # type: ignore[method-assign]
    if folder := os.environ.get("TVAE_TEST_PIDS"):
        (Path(folder) / str(os.getpid())).touch()
    opening.open_model = opened  # type: ignore[assignment]
    worker.main()
