"""What checksums of a model's weights cost: ``PYTHONPATH=tests/helpers python tests/benchmarks/measure_checksum.py``.

One table: SDXL's decoder in bfloat16 and float32, for the cut of memory that is in the source (``*``) and for others.
``us`` is the kernel's time as a CUDA graph replays it, in microseconds; ``cold`` the same with the weights out of the
cache; ``host`` what one call costs in Python; ``GB/s`` the bytes of the weights over ``cold``; ``share`` that over what
a large copy reads and writes a second. ``first`` is the first call's time in milliseconds, with the kernel to build or
to load; ``table`` that of preparing. The last rows are of the definition in PyTorch. The card must be this program's
alone. ``--device cpu --tiny`` tries it anywhere, with the definition only.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from measuring.models import module_of
from torch import Tensor

from tvae.kernels.checksum import WeightChecksums
from tvae.pipeline.bench.timing import call_seconds, copy_rate, queued_seconds, recorded

CUTS = tuple((words, warps) for words in (1024, 2048, 4096) for warps in (2, 4, 8))
HOST_CALLS = 200
LARGE = 1 << 28
"""Bytes written between two cold calls: several times the cache."""


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    rate = copy_rate(device)
    print(f"{torch.cuda.get_device_name() if device.type == 'cuda' else 'CPU'}: a copy moves {rate / 1e9:.0f} GB/s")
    print("dtype      MB  tensors  blocks  words  warps    table    first       us     cold     host    GB/s  share")
    rows = []
    for dtype in ("bfloat16", "float32"):
        module: Any = module_of("sdxl", options.tiny, dtype, str(device))
        weights = [*module.decoder.parameters(), *module.post_quant_conv.parameters()]
        cuts = CUTS if device.type == "cuda" else ()
        for cut in (*cuts, None):
            rows.append(row := measured(weights, cut, rate, device))
            print(dtype.ljust(9), line(row), flush=True)
        module_of.cache_clear()
    return rows


def measured(
    weights: Sequence[Tensor], cut: tuple[int, int] | None, rate: float, device: torch.device
) -> dict[str, Any]:
    """One row. cut: words of a block and warps; None for the definition."""
    size = sum(t.nbytes for t in weights)
    row: dict[str, Any] = {"MB": size / 1e6, "tensors": len(weights)}
    begun = time.perf_counter()
    if cut is None:
        sums = WeightChecksums(weights)
        sums._fused = None
    else:
        from tvae.kernels.triton import checksum

        now, checksum.TUNING = checksum.TUNING, checksum.Tuning(*cut)
        sums = WeightChecksums(weights)
        checksum.TUNING = now
        assert sums._fused is not None
        row |= {"words": f"{'*' if cut == now else ''}{cut[0]}", "warps": cut[1], "blocks": sums._fused._grid[0]}
    row["table"] = (time.perf_counter() - begun) * 1e3
    row["first"] = call_seconds(sums, device) * 1e3
    replay = recorded(sums, device) or sums
    row["us"] = queued_seconds(replay, device, repeat=7) * 1e6
    cold = cold_seconds(replay, device)
    return row | {
        "cold": cold * 1e6,
        "host": host_seconds(sums, device) * 1e6,
        "rate": size / cold / 1e9,
        "share": size / cold / rate,
    }


def cold_seconds(run: Callable[[], Any], device: torch.device) -> float:
    """Median of single calls, each after as much was written as no cache holds."""
    other = torch.empty(LARGE, dtype=torch.uint8, device=device)
    if device.type != "cuda":
        return statistics.median(call_seconds(run, device) for _ in range(3))
    times = []
    for _ in range(20):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        other.fill_(1)  # the device is busy while the host starts what follows
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def host_seconds(run: Callable[[], Any], device: torch.device) -> float:
    """Median of what a call takes before it returns; on a CPU that is all of it."""
    times = []
    for n in range(HOST_CALLS if device.type == "cuda" else 3):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
        if device.type == "cuda" and n % 20 == 19:  # else the device's queue fills up
            torch.cuda.synchronize()
    return statistics.median(times)


def line(row: dict[str, Any]) -> str:
    numbers = "".join(f"{row[key]:9.1f}" for key in ("table", "first", "us", "cold", "host"))
    cut = f"{row.get('blocks', ''):>7} {row.get('words', 'native'):>6} {row.get('warps', ''):>6}"
    return f"{row['MB']:5.0f} {row['tensors']:8} {cut}{numbers}{row['rate']:8.0f} {row['share']:6.2f}"


if __name__ == "__main__":
    main()
