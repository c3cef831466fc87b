"""Time of the CUDA level's operations, beside a copy, the native level and Triton's where that is installed.

``python tests/benchmarks/bench_cuda.py`` prints a table: for each shape and operation the default ring and the best of
each form, with the share of a copy's bandwidth. Bytes are those that the operation must move. Under a minute on an
H200.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tvae.kernels import cuda, implementation, why_missing
from tvae.kernels.cuda.norm import add_stats, group_stats, norm_act
from tvae.kernels.cuda.ring import FORMS, Ring

SHAPES = ((1, 128, 1024, 1024), (1, 256, 1024, 1024), (1, 512, 256, 256), (1, 512, 128, 128), (16, 128, 512, 512))
RINGS = (
    *(Ring(3, 2, 16384, 2), Ring(4, 3, 16384, 2), Ring(6, 5, 16384, 2), Ring(4, 3, 32768, 1)),
    *(Ring(4, 3, 8192, 3), Ring(4, 3, 8192, 4), Ring(3, 2, 8192, 4), Ring(4, 3, 16384, 3), Ring(2, 1, 16384, 3)),
)
OPERATIONS = {"group_stats": 1, "norm_act": 2, "add_stats": 3, "add": 3}
"""Operation -> maps that it reads and writes."""


def milliseconds(run: Callable[[], Any], flush: Tensor) -> float:
    """Median of seven runs, each after a write of more than the cache holds."""
    run()
    times = []
    for _ in range(7):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def calls(x: Tensor, residual: Tensor, out: Tensor, affine: Tensor, bias: Tensor) -> dict[str, Callable[..., Any]]:
    """Operation -> a call of given implementations."""
    return {
        "group_stats": lambda f, **k: f["group_stats"](x, **k),
        "norm_act": lambda f, **k: f["norm_act"](x, affine, "silu", **k),
        "add_stats": lambda f, **k: f["add_stats"](x, residual, bias, out, True, **k),
        "add": lambda f, **k: f["add_stats"](x, residual, bias, out, False, **k),
    }


def overhead() -> None:
    """Microseconds of Python a call, and of the first call in this process."""
    x = torch.randn(1, 16, 16, 128, device="cuda").bfloat16().movedim(-1, 1)
    affine = torch.ones(2, 1, 128, device="cuda")
    for name, run in {
        "group_stats": lambda: group_stats(x),
        "norm_act": lambda: norm_act(x, affine, "silu"),
        "add_stats": lambda: add_stats(x, x, None, None, True),
    }.items():
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        start = time.perf_counter()
        for _ in range(300):
            run()
        each = (time.perf_counter() - start) / 300
        torch.cuda.synchronize()
        print(f"{name:12} first call {first * 1e3:7.1f} ms, then {each * 1e6:5.1f} us each")


def column(form: str, run: Callable[..., Any], moved: int, copy: float, flush: Tensor) -> str:
    """The default ring and the best of all, with their share of the copy's TB/s."""
    found: dict[Ring | None, float] = {}
    for ring in (None, *RINGS):
        with suppress(ValueError):  # too large for this card
            found[ring] = milliseconds(partial(run, cuda.IMPLEMENTATIONS, form=form, ring=ring), flush)
    best = min(found, key=lambda ring: found[ring])
    shares = {ring: moved / found[ring] / 1e9 / copy for ring in (None, best)}
    which = "default" if best is None else "/".join(str(v) for v in vars(best).values())
    return f"{form} {found[None]:.3f} ms {shares[None]:4.0%}, best {found[best]:.3f} ms {shares[best]:4.0%} ({which})"


def main() -> None:
    if cuda.missing():
        raise SystemExit(f"the CUDA level cannot run here: {cuda.missing()}")
    overhead()
    forms = [form for form, major in FORMS.items() if torch.cuda.get_device_capability()[0] >= major]
    flush = torch.empty(1 << 28, dtype=torch.int8, device="cuda")
    print(f"{torch.cuda.get_device_name()}; Triton: {why_missing('triton') or 'here'}")
    print("ring: stages/prefetch/tile bytes/blocks per multiprocessor")
    for shape in SHAPES:
        n, c, h, w = shape
        x, residual, out = (torch.randn(n, h, w, c, device="cuda").bfloat16().movedim(-1, 1) for _ in range(3))
        affine, bias = torch.randn(2, n, c, device="cuda"), torch.randn(c, device="cuda").bfloat16()
        size = x.numel() * x.element_size()
        copy = 2 * size / milliseconds(partial(out.copy_, x), flush) / 1e9
        print(f"\n{list(shape)} bfloat16: copy {copy:.2f} TB/s")
        for name, run in calls(x, residual, out, affine, bias).items():
            moved = OPERATIONS[name] * size
            op = "add_stats" if name == "add" else name
            line = []
            for level in ("native", "triton"):
                f = None if why_missing(level) else implementation(op, level)
                if f is not None:
                    ms = milliseconds(partial(run, {op: f}), flush)
                    line.append(f"{level} {ms:.3f} ms {moved / ms / 1e9 / copy:4.0%}")
            line += [column(form, run, moved, copy, flush) for form in forms]
            print(f"  {name:12} " + " | ".join(line), flush=True)


if __name__ == "__main__":
    main()
