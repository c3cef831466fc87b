"""Ranks that are processes of this machine, with gloo between them, or NCCL.

Those with gloo are copies of a process that has imported what they all need, where the system has such: PyTorch and
diffusers take seconds to import, of which most tests of ranks would otherwise consist.
"""

from __future__ import annotations

import gc
import multiprocessing as processes
import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import multiprocessing

from tvae.pipeline.engine.run.nccl_exchange import set_for_recordings

__all__ = ["in_ranks"]

_ROOT = str(Path(__file__).parents[2])
"""Where processes find the modules of tests, however pytest was started."""
_IMPORTED = [
    *("torch.distributed", "torch._dynamo", "torch.export", "diffusers.models.autoencoders", "tiny_vaes"),
    *("tvae.pipeline.session.session", "tvae.pipeline.engine.capture.capture"),
]


def in_ranks(
    ranks: int, do: Callable[..., Any], *args: Any, seconds: float = 120, gone: float = 0, backend: str = "gloo"
) -> list[Any]:
    """What ``do(rank, *args)`` gives in each process, in order. It must be a module's function, and its results such
    that ``torch.save`` takes. Raises what the first to fail raises; gone: seconds that the others then have. backend:
    with NCCL in it each process has the GPU of its number, and its messages can be recorded."""
    with tempfile.TemporaryDirectory() as folder:
        with mock.patch.object(sys, "path", [*sys.path, _ROOT]):
            method, given = _method(backend), (ranks, folder, backend, dict(os.environ), do, args)
            context = multiprocessing.start_processes(_rank, given, ranks, join=False, start_method=method)
        assert context is not None
        end = time.monotonic() + seconds
        try:
            while not context.join(timeout=1, **({"grace_period": gone} if gone else {})):
                assert time.monotonic() < end, f"the ranks took longer than {seconds} s"
        finally:
            for process in context.processes:
                process.kill()
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(ranks)]


def _method(backend: str) -> str:
    """How processes are started. A GPU is not for copies of a process that may have looked for it."""
    if backend != "gloo" or "forkserver" not in processes.get_all_start_methods():
        return "spawn"
    _begin_to_copy()
    return "forkserver"


@cache
def _begin_to_copy() -> None:
    from multiprocessing import forkserver  # not for Windows

    processes.set_forkserver_preload(_IMPORTED)
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join([*sys.path, _ROOT])):
        forkserver.ensure_running()


def _rank(
    rank: int,
    ranks: int,
    folder: str,
    backend: str,
    environment: dict[str, str],
    do: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    os.environ.clear()  # a copy has that of the process it was made of
    os.environ |= environment
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(f"{folder}/store", ranks)
    if "nccl" in backend:
        set_for_recordings()
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    try:
        torch.save(do(rank, *args), f"{folder}/{rank}.pt")
    finally:
        gc.collect()  # a group that is still held when Python ends may abort the process
        dist.destroy_process_group()
