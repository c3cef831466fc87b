"""Stable Diffusion XL's VAE in bfloat16 in memory that is named, at large sizes: what was taken, and how long it took.

``PYTHONPATH=tests/helpers python tests/gpu/measure_budgets.py decode:2048,4096 encode:2048 decode:8192@8``: a side, its
sizes, and after @ the budgets in GiB (24, 12, 8 and 6 where none are named; 0 is none). All that the process takes from
the card counts: the card must be its alone, and so must the process be a budget's: what an earlier one recorded is held
on. Cold is a budget's first run (it pins host memory), warm the one after.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from tiny_vaes import relative_l2, result, waves

from tvae.pipeline import TiledVAE
from tvae.pipeline.bench.shapes import SHAPES, build
from tvae.pipeline.errors import PlanError

GIB = 1 << 30
USUAL = (24, 12, 8, 6)


def taken() -> int:
    """Bytes of the device that are not free."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def run(tiled: Any, side: str, x: torch.Tensor, warm: bool) -> tuple[torch.Tensor, float, float, int, int]:
    """(result on the host, cold and warm seconds, the most bytes of the device, and of tensors beyond those before)."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before, seconds = torch.cuda.memory_allocated(), []
    for _ in range(2 if warm else 1):
        start = time.perf_counter()
        value = result(getattr(tiled, side)(x))
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        value = value.cpu()
    beside = taken() - torch.cuda.memory_reserved()
    most = beside + torch.cuda.max_memory_reserved()
    return value, seconds[0], seconds[-1], most, torch.cuda.max_memory_allocated() - before


def main() -> None:
    torch.set_grad_enabled(False)
    model = build(SHAPES["sdxl"]).cuda().bfloat16()
    for part in sys.argv[1:]:
        side, _, rest = part.partition(":")
        sizes, _, budgets = rest.partition("@")
        for size in map(int, sizes.split(",")):
            x = waves((1, 4, size // 8, size // 8) if side == "decode" else (1, 3, size, size)).cuda().bfloat16()
            free = None
            for named in (0, *USUAL) if not budgets else map(int, budgets.split(",")):
                tiled = TiledVAE(model, preset="h200", vram=f"{named}GiB" if named else None)
                start = time.perf_counter()
                try:
                    plan = tiled.plan(tuple(x.shape), side)  # type: ignore[arg-type]
                except PlanError as refusal:
                    print(f"{side} {size} {named:3} GiB: {refusal}", flush=True)
                    continue
                planning = time.perf_counter() - start
                value, cold, warm, most, tensors = run(tiled, side, x, size < 8192)
                free = value if free is None else free
                ratio, apart = plan.peak_bytes / tensors, relative_l2(value, free)
                print(
                    f"{side} {size} {named or 'no':>3} GiB: took {most / GIB:6.2f} GiB, tensors {tensors / GIB:6.2f}, "
                    f"said {plan.peak_bytes / GIB:6.2f} (x{ratio:.2f}), host {plan.host_bytes / GIB:6.2f}, "
                    f"planned in {planning:.1f} s, cold {cold:.2f} s, warm {warm:.3f} s, "
                    f"strips of {plan.strip_rows}, differs by {apart:.1e}",
                    flush=True,
                )
                del tiled, value
            del x, free


if __name__ == "__main__":
    main()
