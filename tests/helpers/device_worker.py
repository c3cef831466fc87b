"""The process of a device whose VAE is the stand-in; its argument says what happens to it.

``as-it-is``; ``dies``: it is killed while it computes a picture of 8 columns of latents; ``hangs-up``: the same, and
the device does not answer any more; ``dies-reading``: it is killed while it reads the file poison.png; ``unsupported``:
every call is refused; ``slow``: a call takes a while.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from stand_in import StandIn

import tvae.pipeline.session.model as opening
from tvae.pipeline.errors import UnsupportedOp, UsageError
from tvae.pipeline.jobs.devices import worker
from tvae.pipeline.media import sandbox

POISON = 64
"""Columns of pixels of a picture that something happens to."""


class Disturbed(StandIn):
    """The stand-in, and what happens to it."""

    def encode(self, x: Any) -> Any:
        mode = sys.argv[1]
        if mode == "slow":
            time.sleep(0.3)
        if mode == "unsupported":
            raise UnsupportedOp("aten.fft", "encoder.mid")
        if x.shape[-1] == POISON and mode == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if x.shape[-1] == POISON and mode == "hangs-up":
            worker._answers = lambda _vaes: False
            raise RuntimeError("an illegal memory access was encountered\nand more lines")
        return super().encode(x)


def opened(name: str, **options: Any) -> StandIn:
    if options["dtype"] not in (None, "float32"):
        raise UsageError(f"unknown dtype '{options['dtype']}'")
    return Disturbed(name)


def read(path: Path, *more: Any) -> Any:
    if path.name == "poison.png":
        os.kill(os.getpid(), signal.SIGKILL)
    return open_here(path, *more)


if __name__ == "__main__":
    open_here = sandbox.open_here
    if sys.argv[1] == "dies-reading":
        sandbox.open_here = read
    if folder := os.environ.get("TVAE_TEST_PIDS"):
        (Path(folder) / str(os.getpid())).touch()
    opening.open_model = opened  # type: ignore[assignment]
    worker.main()
