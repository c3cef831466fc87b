"""One picture or clip on N devices against one: time, exchange, memory, error.

``python tests/gpu/measure_devices.py --devices 2`` starts a process for each GPU (NCCL) and prints one line for every
model, side and size. ``--one-process`` shares among threads instead (``TiledVAE(vae, devices=[...])``), with no figure
for exchanges. ``--cpu --tiny`` does the same between CPUs (gloo) with small models and sizes. Columns: median
seconds of a call on one device (whose runs are recorded as CUDA graphs where the preset wants it) and on all; the
speed-up; the share of the shared call that the first rank's stream waits for or copies in exchanges; the most bytes a
device has in tensors on one and on all; the relative L2 distance between the two results.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.run.exchange import GroupExchange

Case = tuple[str, str, tuple[int, ...]]
"""(model, side, shape of the input)."""
SDXL = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
}
TINY_KL = {**SDXL, "block_out_channels": (16, 16, 32, 32), "norm_num_groups": 8, "layers_per_block": 1}
TINY_WAN = {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 2, 2, 2], "num_res_blocks": 1, "latents_mean": [0.0] * 4}
TINY_HUNYUAN = {"block_out_channels": (8, 8, 16, 16), "layers_per_block": 1, "norm_num_groups": 4}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sdxl": ("AutoencoderKL", SDXL, TINY_KL),
    "hunyuan": ("AutoencoderKLHunyuanVideo", {}, TINY_HUNYUAN),
    "wan": ("AutoencoderKLWan", {}, {**TINY_WAN, "latents_std": [1.0] * 4}),
}
"""Name: class, its configuration, and that of a small one."""
CASES: list[Case] = [
    *(("sdxl", "decode", (1, 4, n // 8, n // 8)) for n in (1024, 2048, 4096, 8192)),
    *(("sdxl", "encode", (1, 3, n, n)) for n in (1024, 2048, 4096, 8192)),
    ("hunyuan", "decode", (1, 16, 33, 90, 160)),
    ("wan", "decode", (1, 16, 21, 90, 160)),
    ("wan", "encode", (1, 3, 81, 720, 1280)),
]
TINY_CASES: list[Case] = [
    ("sdxl", "decode", (1, 4, 12, 8)),
    ("sdxl", "encode", (1, 3, 96, 64)),
    ("hunyuan", "decode", (1, 16, 2, 8, 4)),
    ("wan", "decode", (1, 4, 2, 8, 4)),
]


def built(name: str, tiny: bool, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The model, with the same random weights in every process."""
    from diffusers.models import autoencoders

    kind, large, small = MODELS[name]
    torch.manual_seed(0)
    model: nn.Module = getattr(autoencoders, kind)(**(small if tiny else large))
    return model.eval().to(device, dtype)


@contextmanager
def exchange_seconds(device: torch.device) -> Iterator[list[Callable[[], float]]]:
    """Of every exchange inside, a function that says how long it took, on the device's own clock."""
    found: list[Callable[[], float]] = []
    plain = {name: getattr(GroupExchange, name) for name in ("swap", "gather", "broadcast")}

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            if device.type == "cuda":
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                result = call(*args)
                end.record()
                found.append(lambda: begin.elapsed_time(end) / 1e3)
                return result
            at = time.perf_counter()
            result = call(*args)
            took = time.perf_counter() - at
            found.append(lambda: took)
            return result

        return wrapped

    for name, call in plain.items():
        setattr(GroupExchange, name, timed(call))
    try:
        yield found
    finally:
        for name, call in plain.items():
            setattr(GroupExchange, name, call)


def tensor_of(output: Any) -> Tensor:
    """The moments of a posterior, or the sample."""
    first = output[0]
    found: Tensor = first if torch.is_tensor(first) else first.parameters
    return found


def measured(call: Callable[[], Any], device: torch.device, warm: int, times: int) -> tuple[float, float, int, Tensor]:
    """Median seconds, seconds in exchanges, most bytes of tensors (0 on a CPU), and the result."""
    for _ in range(warm):
        result = tensor_of(call())
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    seconds, exchanged = [], []
    for _ in range(times):
        del result
        with exchange_seconds(device) as found:
            at = time.perf_counter()
            result = tensor_of(call())
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - at)
        exchanged.append(sum(took() for took in found))
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return statistics.median(seconds), statistics.median(exchanged), peak, result


def rank_of(rank: int, options: argparse.Namespace, port: int) -> None:
    """One process: all cases, on one device and on all."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    device = torch.device("cpu") if options.cpu else torch.device("cuda", rank)
    if not options.cpu:
        torch.cuda.set_device(device)
    backend = "gloo" if options.cpu else "nccl"
    dist.init_process_group(backend, rank=rank, world_size=options.devices)
    dtype = torch.float32 if options.cpu else torch.bfloat16
    try:
        for name, side, shape in TINY_CASES if options.tiny else CASES:
            if options.only and name not in options.only:
                continue
            one_case(rank, options, (name, side, shape), device, dtype)
    finally:
        dist.destroy_process_group()


def one_case(rank: int, options: argparse.Namespace, case: Case, device: torch.device, dtype: torch.dtype) -> None:
    """Measure one line of the table, and print it."""
    name, side, shape = case
    model = built(name, options.tiny, device, dtype)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    alone: tuple[float, float, int, Tensor | None] = (0.0, 0.0, 0, None)
    if rank == 0:
        plain = TiledVAE(model)
        seconds, exchanged, peak, result = measured(lambda: getattr(plain, side)(x), device, 4, options.times)
        alone = seconds, exchanged, peak, result.cpu()
        del plain, result
    if device.type == "cuda":
        torch.cuda.empty_cache()
    dist.barrier()
    together = TiledVAE(model, group=dist.group.WORLD, gather=options.gather)
    seconds, exchanged, peak, result = measured(lambda: getattr(together, side)(x), device, 2, options.times)
    if rank == 0 and alone[3] is not None:
        want = alone[3].double()
        mine = result.cpu().double()
        want = want[..., : mine.shape[-2], :]  # the first rank's rows, where they are not gathered
        error = float((mine - want).norm() / want.norm())
        print(
            f"{name:8} {side:6} {'x'.join(map(str, shape)):>18}  one {alone[0]:9.4f} s  {options.devices} devices "
            f"{seconds:9.4f} s  {alone[0] / seconds:5.2f} x  exchange {exchanged / seconds:6.1%}  "
            f"peak {alone[2] / 2**30:6.2f} -> {peak / 2**30:6.2f} GiB  error {error:.1e}",
            flush=True,
        )
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
        for vae, warm in ((TiledVAE(model), 4), (TiledVAE(model, devices=devices), 2)):
            seconds, _, peak, result = measured(partial(getattr(vae, side), x), first, warm, options.times)
            found.append((seconds, peak, result.cpu().double()))
            vae.release()
            if first.type == "cuda":
                torch.cuda.empty_cache()
        (alone, most, want), (shared, less, mine) = found
        print(
            f"{name:8} {side:6} {'x'.join(map(str, shape)):>18}  one {alone:9.4f} s  {options.devices} devices "
            f"{shared:9.4f} s  {alone / shared:5.2f} x  first's peak {most / 2**30:6.2f} -> {less / 2**30:6.2f} GiB  "
            f"error {float((mine - want).norm() / want.norm()):.1e}",
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
