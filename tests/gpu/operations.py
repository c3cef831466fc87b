"""What every operation takes beside what plans know of it.

``PYTHONPATH=tests/helpers python tests/gpu/operations.py cosmos cogvideox --seconds 200`` encodes and decodes with each
family, in bfloat16 and float32, alone and in a batch, whole and in strips, a single frame and several. Of each
operation it measures the memory that a strip of it takes, and prints those that take over 2 MiB and 2 % more than their
rows and their workspace, worst first. Run it where a sweep finds peaks that no plan knew, to see all causes at once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from sweeping.cells import Cell
from sweeping.families import Swept, build, swept
from sweeping.inputs import input_of, options_of
from sweeping.shared_card import take_share

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.rules.context import Context

_LEAST, _PART = 2 << 20, 0.02
_WIDE, _STRIP = {None: 512, 1: 256}, 12
"""Pixels of a side: of images, of clips. Latent rows of a strip."""


class Found(NamedTuple):
    """One strip of an operation: bytes that it took and that plans know, and what it was."""

    took: int
    known: int
    case: str
    op: Op
    rows: tuple[int, int]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print what was not known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    families = swept(False)
    parser.add_argument("families", nargs="*", default=[*families], help="all by default")
    parser.add_argument("--seconds", type=float, default=500.0, help="after which no model is begun")
    parser.add_argument("--share", type=int, default=1, help="processes that have the card together")
    options = parser.parse_args(arguments)
    if options.share > 1:
        take_share(options.share)
    begin, found = time.perf_counter(), list[Found]()
    for name in options.families:
        for dtype in ("bfloat16", "float32"):
            if dtype not in families[name].types:
                continue
            if time.perf_counter() - begin > options.seconds:
                print(f"no time left for {name} in {dtype}", flush=True)
                continue
            found += measured(families[name], name, dtype)
            print(f"{time.perf_counter() - begin:6.1f} s  {name} {dtype}", flush=True)
    by_kind = defaultdict[tuple[str, ...], list[Found]](list)
    for each in found:
        by_kind[each.case.split()[1], each.op.name].append(each)
    for kind, cases in sorted(by_kind.items(), key=lambda item: -max(c.took - c.known for c in item[1])):
        print(f"{' '.join(kind)}: {len(cases)} strips")
        for c in sorted(cases, key=lambda c: c.known - c.took)[:4]:
            told = f"{c.took >> 20} MiB, {c.known >> 20} known, rows {c.rows} of {list(c.op.shape)}"
            print(f"    {c.case}: {told}  {c.op.module}")


def measured(of: Swept, name: str, dtype: str) -> list[Found]:
    """Of one model in one type."""
    device = torch.device("cuda", torch.cuda.current_device())
    module = torch.nn.Module.to(build(of, device), getattr(torch, dtype))
    lengths: list[int | None] = [None]
    if None not in of.lengths:
        lengths = sorted({min(of.lengths), next((n for n in sorted(of.lengths) if n > 4), max(of.lengths))})
    found = list[Found]()
    for side in ("encode", "decode"):
        for frames in lengths:
            for batch in (1,) if of.in_batch else (1, 2):
                for strip in (None, _STRIP):
                    step = of.geometry.spatial
                    size = _WIDE[None if frames is None else 1] // step * step
                    cell = Cell(0, 0, 0, "", name, side, size, size + step, frames, batch, dtype, None, False, False, 1)
                    case = f"{name} {dtype} {side} T{frames} x{batch} strip {strip}"
                    with watched(case, found), torch.no_grad():
                        x = input_of(cell, of, module, device)
                        getattr(TiledVAE(module, "h200", strip=strip), side)(x, **options_of(cell, of))
    return found


@contextmanager
def watched(case: str, found: list[Found]) -> Iterator[None]:
    """Every operation that is lowered within the block is measured whenever it runs."""
    emit, put, inside = Context.emit, Context.put, list[bool]()

    def watching(ctx: Context, id_: int, run: Callable[..., Any], out_at: int | None) -> Callable[..., Any]:
        def measuring(read: Any, lo: int, hi: int, *more: Any) -> Any:
            if inside or torch.cuda.is_current_stream_capturing():
                return run(read, lo, hi, *more)
            inside.append(True)
            try:
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                result = run(read, lo, hi, *more)
                took = torch.cuda.max_memory_allocated() - before
            finally:
                inside.clear()
            op = ctx.ops[id_]
            into = out_at is not None and more[out_at] is not None and not op.indirect
            known = int((0 if into else op.row_bytes * (hi - lo)) + op.workspace(hi - lo) + _packed(ctx, op, lo, hi))
            if took - known > max(_LEAST, _PART * known):
                found.append(Found(took, known, case, op, (lo, hi)))
            return result

        return measuring

    def emitting(self: Context, node: Any, inputs: Any, axis: Any, demand: Any, run: Any, **more: Any) -> Op:
        if axis is not None and more.get("reduction") is None:
            run = watching(self, len(self.ops), run, None)
        return emit(self, node, inputs, axis, demand, run, **more)

    def putting(self: Context, op: Op, **more: Any) -> Op:
        made = put(self, op, **more)
        if "produce" in more:
            self.ops[op.id] = replace(made, produce=watching(self, op.id, more["produce"], 0))
        return self.ops[op.id]

    Context.emit, Context.put = emitting, putting  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Context.emit, Context.put = emit, put  # type: ignore[method-assign]


def _packed(ctx: Context, op: Op, lo: int, hi: int) -> float:
    """Bytes of the copy of an input that is read in part."""
    for id_, first, last in op.demand(lo, hi):
        axis = ctx.ops[id_].axis
        if id_ == op.packs and axis is not None and last - first < axis.rows:
            return ctx.ops[id_].row_bytes * (last - first)
    return 0.0


if __name__ == "__main__":
    sys.exit(main())
