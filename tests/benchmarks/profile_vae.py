"""Where the time of one side of a VAE goes on this GPU: kernels by total time, for the engine and the untiled model.

``PYTHONPATH=tests/helpers python tests/benchmarks/profile_vae.py sdxl decode 1024 [strip]``; sdxl, wan21 or hunyuan; a
size or HEIGHTxWIDTH. Weights are random.
"""

from __future__ import annotations

import copy
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from tiny_vaes import relative_l2, result, waves

from tvae.pipeline import TiledVAE
from tvae.pipeline.bench.shapes import SHAPES, build
from tvae.pipeline.session.runner import RECORDED_AT


def timed(run: Callable[[], Any], repeat: int = 7) -> float:
    """Median milliseconds, warm."""
    for _ in range(RECORDED_AT + 1):
        run()
    times = []
    for _ in range(repeat):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def kernels(run: Callable[[], Any], most: int = 28) -> None:
    """Print what runs on the device in one call."""
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    total: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            total[event.name][0] += event.device_time
            total[event.name][1] += 1
    print(f"  all kernels {sum(t for t, _ in total.values()) / 1e3:.2f} ms")
    for name, (time, count) in sorted(total.items(), key=lambda kv: -kv[1][0])[:most]:
        print(f"  {time / 1e3:8.3f} ms {count:4d}x {name[:110]}")


def main() -> None:
    name, side, size, *rest = sys.argv[1:]
    height, width = (int(n) for n in (size.split("x") * 2)[:2])
    shape = SHAPES[name]
    model = build(shape).cuda().bfloat16()
    frames = {"sdxl": (None, None), "wan21": (5, 17), "hunyuan": (5, 17)}[name]
    channels = 3 if side == "encode" else (4 if name == "sdxl" else 16)
    many = frames[1] if side == "encode" else frames[0]
    scale = 1 if side == "encode" else 8
    x = waves((1, channels, *([many] if many else []), height // scale, width // scale)).cuda().bfloat16()
    with torch.no_grad():
        untiled = timed(lambda: getattr(model, side)(x), 3)
        own = result(getattr(model, side)(x))
        reference = result(getattr(copy.deepcopy(model).float(), side)(x.float())) if height <= 1024 else own
    print(f"== {name} {side} {size}: untiled {untiled:.2f} ms, error {relative_l2(own, reference):.5f}")
    for strip in [int(s) for s in rest] or [10**6]:
        tiled = TiledVAE(model, preset="h200", strip=strip)
        torch.cuda.reset_peak_memory_stats()
        error = relative_l2(result(getattr(tiled, side)(x)), reference)
        ours = timed(lambda t=tiled: getattr(t, side)(x))
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(f"strip {strip}: {ours:.2f} ms, error {error:.5f}, peak {peak:.2f} GiB", flush=True)
        kernels(lambda t=tiled: getattr(t, side)(x))


if __name__ == "__main__":
    main()
