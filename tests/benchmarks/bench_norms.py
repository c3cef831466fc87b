"""How fast the Triton normalisations are, as a share of a plain copy, for several cuts of the work.

Run on a GPU: ``python tests/benchmarks/bench_norms.py``. Calls are timed inside CUDA graphs, rotating among maps that
do not all fit the cache. The first table has the best cut for each operation and every shape, the second what is in the
source now; the last what one call costs in Python.
"""

from __future__ import annotations

import itertools
import math
import statistics as middle
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from tvae.kernels.triton import IMPLEMENTATIONS, finish, norm, rms, statistics
from tvae.kernels.triton.launch import Tuning

SHAPES = [(1, 128, 1024, 1024), (1, 256, 1024, 1024), (1, 512, 256, 256), (1, 512, 128, 128), (16, 128, 512, 512)]
PIXEL_SHAPES = [(1, 96, 4, 480, 832), (1, 192, 4, 240, 416), (1, 384, 4, 120, 208), (1, 128, 1024, 1024)]
CACHE = 120e6
"""Bytes of maps that are rotated, at least: more than twice the cache."""
READING = [Tuning(*cut) for cut in itertools.chain(
    itertools.product((8192,), (8,), (1, 2, 4), (5,)),
    itertools.product((8192,), (8,), (2, 4), (1,)),
    itertools.product((8192,), (4,), (2, 4), (4,)),
    itertools.product((16384,), (8,), (1, 2), (3,)),
    itertools.product((16384,), (16,), (1, 2), (3,)),
    itertools.product((32768,), (16,), (1,), (3,)),
)]  # fmt: skip
ADDING = [Tuning(*cut) for cut in itertools.chain(
    itertools.product((8192,), (8,), (1, 2, 4), (4,)),
    itertools.product((8192,), (8,), (2, 4), (1,)),
    itertools.product((8192,), (4,), (2, 4), (3,)),
    itertools.product((4096,), (4,), (2, 4, 8), (4,)),
    itertools.product((16384,), (16,), (1, 2), (3,)),
)]  # fmt: skip
WRITING = [Tuning(*cut) for cut in itertools.chain(
    itertools.product((16384,), (8,), (4, 16, 32, 10**6), (1,)),
    itertools.product((8192,), (8,), (8, 32, 10**6), (1,)),
    itertools.product((8192,), (4,), (8, 32, 10**6), (1,)),
    itertools.product((8192,), (8,), (2, 4), (4,)),
)]  # fmt: skip


def copies(shape: tuple[int, ...]) -> list[Tensor]:
    """Maps of this shape with channels innermost, as many as the cache does not hold."""
    order = (0, *range(2, len(shape)), 1)
    many = max(2, math.ceil(CACHE / (2 * math.prod(shape))))
    return [torch.empty_permuted(shape, order, dtype=torch.bfloat16, device="cuda").normal_() for _ in range(many)]


def seconds(calls: list[Callable[[], Any]]) -> float:
    """Of one call: the median over replays of a graph that makes them all, each a few times."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph, times = torch.cuda.CUDAGraph(), []
    rounds = max(1, 8 // len(calls))
    with torch.cuda.graph(graph):
        kept = [call() for _ in range(rounds) for call in calls]
    for _ in range(7):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / len(kept))
    return middle.median(times[2:])


def operations() -> Iterator[tuple[str, list[Tuning], Any, str, list[tuple[int, ...]]]]:
    """(name, cuts, module and constant that hold the cut, shapes)."""
    small = [shape for shape in SHAPES if 2 * math.prod(shape) <= statistics.CACHED]
    yield "group_stats", READING, statistics, "STATS", [shape for shape in SHAPES if shape not in small]
    yield "group_stats", READING, statistics, "SMALL", small
    yield "add_stats", ADDING, statistics, "ADD", SHAPES
    yield "norm_act", WRITING, norm, "NORM", SHAPES
    yield "rms_norm_act", WRITING, rms, "RMS", PIXEL_SHAPES


def calls_of(name: str, maps: list[Tensor]) -> tuple[list[Callable[[], Any]], int]:
    """Calls of an operation on each of the maps, and the bytes that one must move."""
    run, shape = IMPLEMENTATIONS[name], maps[0].shape
    n, c, size = shape[0], shape[1], maps[0].numel() * 2
    vector = torch.randn(c, device="cuda", dtype=torch.bfloat16)
    if name == "group_stats":
        return [lambda x=x: run(x) for x in maps], size
    if name == "add_stats":
        pairs = zip(maps, maps[1:] + maps[:1], strict=True)
        return [lambda x=x, r=r: run(x, r, vector, x, True) for x, r in pairs], 3 * size
    if name == "norm_act":
        affine = torch.randn(2, n, c, device="cuda")
        return [lambda x=x: run(x, affine, "silu") for x in maps], 2 * size
    return [lambda x=x: run(x, vector, None, 1e-12, "normalize", "silu") for x in maps], 2 * size


def copy_bandwidth() -> float:
    """Bytes per second, read and written, of a copy of 1 GiB."""
    x = torch.empty(2**29, dtype=torch.bfloat16, device="cuda").normal_()
    y = torch.empty_like(x)
    return 2 * x.numel() * 2 / seconds([lambda: y.copy_(x)])


def sweep(
    name: str, cuts: list[Tuning], module: Any, constant: str, shapes: list[tuple[int, ...]], copy: float
) -> None:
    now = getattr(module, constant)
    share: dict[tuple[Tuning, tuple[int, ...]], float] = {}
    for shape in shapes:
        calls, moved = calls_of(name, copies(shape))
        for cut in dict.fromkeys([now, *cuts]):
            setattr(module, constant, cut)
            try:
                share[cut, shape] = moved / seconds(calls) / copy
            except Exception as error:  # one cut that does not fit must not end the sweep
                share[cut, shape] = math.nan
                print(f"{name} {cut} {shape}: {type(error).__name__} {str(error)[:100]}")
        del calls
        torch.cuda.empty_cache()
    setattr(module, constant, now)
    worth = {cut: math.exp(sum(math.log(share[cut, s]) for s in shapes) / len(shapes)) for cut in {c for c, _ in share}}
    order = sorted(worth, key=lambda cut: -worth[cut] if worth[cut] == worth[cut] else 1)
    print(f"\n{name}: share of copy bandwidth for {', '.join('x'.join(map(str, s)) for s in shapes)}")
    for cut in [*order[:4], now]:
        row = "  ".join(f"{share[cut, s]:5.2f}" for s in shapes)
        print(f"  {tuple(cut)!s:24} {row}  mean {worth[cut]:.3f}{'  <- in the source' if cut == now else ''}")
    print("  best of each shape:", [tuple(max(worth, key=lambda cut: share[cut, s])) for s in shapes])


def small_launches() -> None:
    """finish_stats on the device, and what calls cost the host."""
    weight, bias = torch.randn(2, 512, device="cuda").unbind(0)
    print("\nfinish_stats, 512 channels in 32 groups, microseconds by number of blocks")
    tile, warps = finish.TILE, finish.WARPS
    for finish.TILE, finish.WARPS in ((4096, 8), (2048, 8), (2048, 4), (8192, 16)):
        row = []
        for blocks in (1, 264, 1000, 5000):
            parts = torch.rand(1, blocks, 3, 512, device="cuda", dtype=torch.float64) + 1
            row.append(f"{1e6 * seconds([lambda p=parts: finish.finish_stats(p, 32, 1e-6, weight, bias, bias)]):7.1f}")
        print(f"  {finish.TILE, finish.WARPS}: {' '.join(row)}")
    finish.TILE, finish.WARPS = tile, warps
    print("\nmicroseconds of Python for one call, [1, 128, 32, 32]")
    x = copies((1, 128, 32, 32))[:2]
    for name, *_ in operations():
        call = calls_of(name, x)[0][0]
        call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            call()
        print(f"  {name}: {(time.perf_counter() - start) / 200 * 1e6:.1f}")
        torch.cuda.synchronize()


def main() -> None:
    copy = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}: copy {copy / 1e12:.2f} TB/s; cuts are (tile bytes, warps, per SM, stages)")
    for operation in operations():
        sweep(*operation, copy)
    small_launches()


if __name__ == "__main__":
    main()
