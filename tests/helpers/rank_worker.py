"""The process of one of several devices that share items by rows, and what happens to one of them.

Arguments: which rank, and what: ``as-it-is``, ``dies``, ``hangs`` (all its threads), ``full`` (out of memory), or
``wrong`` (a mistake of the program's); in its second call.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tvae.pipeline.jobs.devices import following, worker
from tvae.pipeline.session.session import Session

if __name__ == "__main__":
    torch.set_num_threads(1)
    if folder := os.environ.get("TVAE_TEST_PIDS"):
        (Path(folder) / str(os.getpid())).touch()
    rank, what = int(sys.argv[1]), sys.argv[2]
    met, compute, calls = following.met, Session.compute, [0]

    def disturbed(self: Session, *args: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2 and what in ("dies", "hangs"):
            os.kill(os.getpid(), signal.SIGKILL if what == "dies" else signal.SIGSTOP)
        if calls[0] == 2 and what == "full":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nand more lines")
        if calls[0] == 2 and what == "wrong":
            raise RuntimeError("an illegal memory access was encountered\nand more lines")
        return compute(self, *args, **more)

    def meet(ranks: Any, device: str) -> Any:
        if ranks.rank == rank and what != "as-it-is" and not ranks.meeting.endswith("/1"):
            mock.patch.object(Session, "compute", disturbed).start()
        return met(ranks, device)

    with mock.patch.object(following, "met", meet):
        worker.main()
