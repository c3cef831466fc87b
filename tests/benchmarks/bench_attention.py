"""How fast attention over one wide head is, and its parts: run as a script on a GPU. Prints TFLOP/s, best last."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tvae.kernels.triton import attention
from tvae.kernels.triton.attention import attend_frames
from tvae.kernels.triton.attention_launches import launch_weights
from tvae.kernels.triton.attention_plan import Plan, Scratch, plan_for

DEVICE = torch.device("cuda")
WIDE, SCALE = 512, 0.04
"""Channels; and the scale, near 1/sqrt(512)."""
PEAKED = 6 * SCALE
"""A scale at which a few keys win, so that the repair works."""
TOKENS = (4096, 16384, 65536)
EVERYWHERE = 1 << 30
"""Programs: one for every tile, so that nothing is persistent."""


def _variants(base: Plan) -> list[Plan]:
    cores = base.programs
    small = replace(base, columns=128, warps=4, stages=3, programs=2 * cores)
    return [
        base,
        replace(base, flat=False),
        replace(base, stages=3, slices=2),
        replace(base, stages=3, slices=1),
        replace(base, stages=3, slices=1, flat=False),
        replace(base, group=1),
        replace(base, group=33),
        replace(base, rows=256, columns=128),
        replace(base, depth=128, stages=2, slices=4),
        replace(small, flat=False),
        small,
        replace(small, flat=False, programs=EVERYWHERE),
        replace(base, stages=3, tma=False, slices=1, flat=False),
    ]


def _told(plan: Plan) -> str:
    where = "every tile" if plan.programs == EVERYWHERE else str(plan.programs)
    flags = f"{'flat' if plan.flat else '    '} {'tma' if plan.tma else '   '} group {plan.group:<2} of {where}"
    return f"{plan.rows}x{plan.columns}x{plan.depth} {plan.warps}w {plan.stages}st {plan.slices}sl {flags}"


def _milliseconds(run: Callable[[], object], long: float = 60.0) -> float:
    """Median over batches of calls, warm, about ``long`` milliseconds in all."""
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    torch.cuda.synchronize()
    calls = max(1, int(long / 5e3 / max(1e-6, time.perf_counter() - started)))
    times = []
    for _ in range(5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / calls)
    return sorted(times)[2]


def _graphed(run: Callable[[], object]) -> Callable[[], object]:
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _report(rows: list[tuple[float, str]]) -> None:
    for rate, text in sorted(rows):
        print(f"  {rate:7.1f}  {text}", flush=True)


def _try(
    rows: list[tuple[float, str]], text: str, flops: float, run: Callable[[], object], graph: bool = False
) -> float:
    """Time a call (``graph``: a replay of it) and note its TFLOP/s; what fails is printed in one line."""
    try:
        ms = _milliseconds(_graphed(run) if graph else run)
    except Exception as error:
        print(f"  failed: {text}: {type(error).__name__}: {' '.join(str(error).split())[:160]}", flush=True)
        return 0.0
    rows.append((flops / ms / 1e9, f"{text}  {ms:.3f} ms"))
    return flops / ms / 1e9


def first_product(plan: Plan) -> Plan:
    """Sweep of the weights kernel; gives the fastest plan."""
    block, chunk = plan.block, plan.chunk
    q, k = (torch.randn(rows, WIDE, device=DEVICE).bfloat16() for rows in (block, chunk))
    factor, flops = SCALE * math.log2(math.e), 2 * block * chunk * WIDE
    rows: list[tuple[float, str]] = []
    out = torch.empty(block, chunk, device=DEVICE, dtype=q.dtype)
    _try(rows, "cuBLAS, the product alone", flops, lambda: torch.mm(q, k.T, out=out))
    best = (0.0, plan)
    for variant in _variants(plan):
        scratch = Scratch(block, chunk, WIDE, DEVICE, variant)
        scratch.peaks.fill_(0.0)

        def run(variant: Plan = variant, scratch: Scratch = scratch) -> None:
            launch_weights(q, k, scratch, 0, factor, variant)

        rate = _try(rows, _told(variant), flops, run)
        best = max(best, (rate, variant), key=lambda found: found[0])
    print(f"first product, {block}x{chunk}x{WIDE}:")
    _report(rows)
    return best[1]


def second_product(plan: Plan) -> None:
    """The accumulating product by cuBLAS, for several lengths of a chunk."""
    rows: list[tuple[float, str]] = []
    for chunk in (4096, 8192, 16384):
        p = torch.rand(plan.block, chunk, device=DEVICE).half()
        v = torch.randn(chunk, WIDE, device=DEVICE).half()
        wide = torch.zeros(plan.block, WIDE, device=DEVICE)
        flops = 2 * plan.block * chunk * WIDE
        _try(rows, f"chunk {chunk}, adding", flops, lambda a=wide, b=p, c=v: attention.add_product(a, b, c, False))
        _try(rows, f"chunk {chunk}, first", flops, lambda a=wide, b=p, c=v: attention.add_product(a, b, c, True))
    print(f"second product, {plan.block} rows:")
    _report(rows)


def _chunked(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Plain products with a softmax in between, 2048 queries at a time."""
    out = torch.empty_like(q)
    for first in range(0, len(q), 2048):
        scores = torch.mm(q[first : first + 2048], k.T).mul_(SCALE)
        torch.mm(torch.softmax(scores, 1), v, out=out[first : first + 2048])


def _by_pytorch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, scale=SCALE)


def whole(plan: Plan) -> None:
    """The operation as it is called, against PyTorch's and against three chunked products."""
    for tokens in TOKENS:
        q, k, v = (torch.randn(1, 1, tokens, WIDE, device=DEVICE).bfloat16() for _ in range(3))
        flops = 4 * tokens * tokens * WIDE
        rows: list[tuple[float, str]] = []
        _try(rows, "PyTorch, efficient", flops, lambda q=q, k=k, v=v: _by_pytorch(q, k, v))
        _try(rows, "chunked products", flops, lambda q=q, k=k, v=v: _chunked(q[0, 0], k[0, 0], v[0, 0]))
        half = [x.half() for x in (q, k, v)]
        _try(rows, "float16", flops, lambda half=half: attend_frames(*half, SCALE, False, plan))
        _try(rows, "bfloat16, peaked", flops, lambda q=q, k=k, v=v: attend_frames(q, k, v, PEAKED, False, plan))
        for chunk in (4096, 8192, 16384):
            if chunk <= tokens:

                def run(q: Tensor = q, k: Tensor = k, v: Tensor = v, chunk: int = chunk) -> Tensor:
                    return attend_frames(q, k, v, SCALE, False, replace(plan, chunk=chunk))

                _try(rows, f"bfloat16, chunk {chunk}", flops, run)
                if tokens < 65536:
                    _try(rows, f"bfloat16, chunk {chunk}, CUDA graph", flops, run, graph=True)
        print(f"whole, {tokens} tokens:")
        _report(rows)


def main() -> None:
    torch.manual_seed(0)
    started = time.perf_counter()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, TFLOP/s of {WIDE} channels, bfloat16")
    plan = plan_for(DEVICE, WIDE)
    best = first_product(plan)
    second_product(plan)
    print(f"best: {_told(best)}")
    whole(best)
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
