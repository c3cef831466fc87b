"""One picture or clip on N devices against one: time, exchange, memory, error.

``python tests/gpu/measure_devices.py --devices 2`` starts a process for each GPU (NCCL) and prints one line for every
model, side and size. ``--one-process`` shares among threads instead (``TiledVAE(vae, devices=[...])``), with no figure
for exchanges. ``--cpu --tiny`` does the same between CPUs (gloo) with small models and sizes. Columns: median
seconds of a call on one device and on all (with NCCL both are recorded as CUDA graphs where the preset wants it); the
speed-up; how long the first rank's messages take, as a share of the shared call; how long everything else takes, on
the device with the least of it and on that with the most; the most bytes a device has in tensors, and in what its
recordings keep, on one and on all; whether the run was recorded, on one and on the first of all: where that is
meant to be and is not, the log says why; the relative L2 distance between the two results (of the first rank's rows,
where each keeps its own).
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from device_cases import CASES, MODELS, TINY_CASES, Case, built
from torch import Tensor, multiprocessing, nn

from tvae.kernels.prebuild import wait_for_all
from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.run.exchange import GroupExchange
from tvae.pipeline.engine.run.nccl_exchange import set_for_recordings
from tvae.pipeline.memory.limits import recorded_segments
from tvae.pipeline.session.load_libraries import load_libraries
from tvae.pipeline.session.runner import RECORDED_AT

SLOW = 2.0
"""Seconds of a call that is measured fewer times."""
Agreed = Callable[[float], float]
"""The same number on all ranks, from one of each."""


def spent(call: Callable[[], Any], device: torch.device) -> tuple[float, float]:
    """Seconds of a call in exchanges, and in everything else: on a GPU those of kernels, as the profiler sees them."""
    if device.type == "cuda":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            call()
            torch.cuda.synchronize(device)
        rows = [(each.key, each.self_device_time_total / 1e6) for each in found.key_averages()]
        exchange = sum(took for name, took in rows if "nccl" in name.lower())
        return exchange, sum(took for name, took in rows if not name.startswith("cuda")) - exchange
    took, start = 0.0, time.perf_counter()

    def timed(plain: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            nonlocal took
            at = time.perf_counter()
            result = plain(*args)
            took += time.perf_counter() - at
            return result

        return wrapped

    names = ("swap", "gather", "broadcast")
    with mock.patch.multiple(GroupExchange, **{name: timed(getattr(GroupExchange, name)) for name in names}):
        call()
    return took, time.perf_counter() - start - took


def tensor_of(output: Any) -> Tensor:
    """The moments of a posterior, or the sample."""
    first = output[0]
    found: Tensor = first if torch.is_tensor(first) else first.parameters
    return found


def measured(call: Callable[[], Any], device: torch.device, times: int, agreed: Agreed) -> tuple[float, int, Tensor]:
    """Median seconds of calls after the recorded one (the second, where a call takes long) and after all kernels are
    built, most bytes of tensors and recordings (0 on a CPU), and the result."""
    call()
    at = time.perf_counter()
    result = tensor_of(call())
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    slow = agreed(time.perf_counter() - at) > SLOW
    wait_for_all()  # nothing is recorded while kernels are built, on any of them
    agreed(0.0)
    for _ in range(0 if slow else RECORDED_AT - 1):
        del result
        result = tensor_of(call())
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    seconds = []
    for _ in range(min(times, 2) if slow else times):
        del result
        at = time.perf_counter()
        result = tensor_of(call())
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - at)
    peak = torch.cuda.max_memory_allocated(device) + in_recordings(device) if device.type == "cuda" else 0
    return statistics.median(seconds), peak, result


def in_recordings(device: torch.device) -> int:
    """Bytes that recordings keep for their next replay: no tensor has them."""
    return sum(segment["total_size"] - segment["allocated_size"] for segment in recorded_segments(device))


def recorded(vae: TiledVAE) -> str:
    """Is what it ran last a replay from now on?"""
    runs = next(reversed(vae._sessions.values()))._runs
    of_clips = any(clip.recorded for clip in runs._clips.values())
    return "yes" if of_clips or any(ready.runner.recorded for ready in runs._ready.values()) else "no"


def rank_of(rank: int, options: argparse.Namespace, port: int) -> None:
    """One process: all cases, on one device and on all."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    device = torch.device("cpu") if options.cpu else torch.device("cuda", rank)
    if not options.cpu:
        torch.cuda.set_device(device)
    set_for_recordings()
    backend = "gloo" if options.cpu else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, rank=rank, world_size=options.devices)
    dtype = torch.float32 if options.cpu else torch.bfloat16
    if not options.cpu:
        load_libraries(dtype, device, 2)
        load_libraries(dtype, device, 3)
    try:
        for name, side, shape in TINY_CASES if options.tiny else CASES:
            if options.only and name not in options.only:
                continue
            one_case(rank, options, (name, side, shape), device, dtype)
    finally:
        dist.destroy_process_group()


def most(device: torch.device, seconds: float) -> float:
    """Of all ranks."""
    found = torch.tensor(seconds, device=device, dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def distance(mine: Tensor, want: Tensor) -> float:
    """Relative L2."""
    wide = want.double()
    return float((mine.cpu().double() - wide).norm() / wide.norm())


def exactly(model: nn.Module, side: str, x: Tensor) -> Tensor:
    """What the same weights give in a wider type."""
    narrow, wide = x.dtype, torch.float64 if x.dtype == torch.float32 else torch.float32
    with torch.no_grad():
        found = tensor_of(getattr(TiledVAE(model.to(wide)), side)(x.to(wide))).cpu()
    model.to(narrow)
    return found


def one_case(rank: int, options: argparse.Namespace, case: Case, device: torch.device, dtype: torch.dtype) -> None:
    """Measure one line of the table, and print it."""
    name, side, shape = case
    model = built(name, options.tiny, device, dtype)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    alone: tuple[float, int, Tensor | None] = (0.0, 0, None)
    exact, replayed = None, ""
    if rank == 0:
        plain = TiledVAE(model)
        seconds, peak, result = measured(partial(getattr(plain, side), x), device, options.times, float)
        alone, replayed = (seconds, peak, result.cpu()), recorded(plain)
        plain.release()
        del plain, result
        if options.law and seconds < SLOW:
            exact = exactly(model, side, x)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    dist.barrier()
    together = TiledVAE(model, group=dist.group.WORLD, gather=options.gather)
    call = partial(getattr(together, side), x)
    seconds, peak, result = measured(call, device, options.times, partial(most, device))
    exchange, busy = spent(call, device)
    least, greatest = -most(device, -busy), most(device, busy)
    if rank == 0 and alone[2] is not None:
        want = alone[2][..., : result.shape[-2], :]  # the first rank's rows, where they are not gathered
        law = ""
        if exact is not None:
            exact = exact[..., : result.shape[-2], :]
            law = f"  of the exact result {distance(want, exact):.2e} -> {distance(result, exact):.2e}"
        print(
            f"{name:8} {side:6} {'x'.join(map(str, shape)):>18}  one {alone[0]:9.4f} s  {options.devices} devices "
            f"{seconds:9.4f} s  {alone[0] / seconds:5.2f} x  exchange {exchange / seconds:6.1%}  "
            f"busy {least:.4f} to {greatest:.4f} s  "
            f"peak {alone[1] / 2**30:6.2f} -> {peak / 2**30:6.2f} GiB  recorded {replayed}, {recorded(together)}  "
            f"apart {distance(result, want):.1e}{law}",
            flush=True,
        )
    together.release()
    dist.barrier()


def threads_of(options: argparse.Namespace) -> None:
    """All cases in this process."""
    devices = [torch.device("cpu")] * options.devices
    if not options.cpu:
        devices = [torch.device("cuda", n) for n in range(options.devices)]
    first, dtype = devices[0], torch.float32 if options.cpu else torch.bfloat16
    for name, side, shape in TINY_CASES if options.tiny else CASES:
        if options.only and name not in options.only:
            continue
        model = built(name, options.tiny, first, dtype)
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(first, dtype)
        found = []
        for vae in (TiledVAE(model), TiledVAE(model, devices=devices)):
            seconds, peak, result = measured(partial(getattr(vae, side), x), first, options.times, float)
            found.append((seconds, peak, result.cpu()))
            vae.release()
            if first.type == "cuda":
                torch.cuda.empty_cache()
        (alone, most, want), (shared, less, mine) = found
        print(
            f"{name:8} {side:6} {'x'.join(map(str, shape)):>18}  one {alone:9.4f} s  {options.devices} devices "
            f"{shared:9.4f} s  {alone / shared:5.2f} x  first's peak {most / 2**30:6.2f} -> {less / 2**30:6.2f} GiB  "
            f"apart {distance(mine, want):.1e}",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=2, help="how many")
    parser.add_argument("--cpu", action="store_true", help="processes on this CPU, with gloo")
    parser.add_argument("--tiny", action="store_true", help="small models and sizes")
    parser.add_argument("--times", type=int, default=5, help="measured calls of each")
    parser.add_argument("--only", nargs="*", choices=sorted(MODELS), help="these models")
    parser.add_argument("--gather", action="store_true", help="every device gets the whole result")
    parser.add_argument("--law", action="store_true", help="errors from the model in a wider type, too")
    parser.add_argument("--one-process", action="store_true", help="threads of one process")
    options = parser.parse_args(arguments)
    if options.one_process:
        threads_of(options)
        return 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(rank_of, (options, port), options.devices)
    return 0


if __name__ == "__main__":
    sys.exit(main())
