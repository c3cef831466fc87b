"""Who has the memory at the peak of a cell's calls: what was alive then, by the lines that took it.

``PYTHONPATH=tests/helpers python tests/gpu/peaks.py 7.3 8.6`` replays cells of the sweep (seed.index) that fell short,
each with the cells of its group before it unless ``--alone``. For every call it prints the peak beyond what was there
before the call, and the largest parts of it, each with the lines of Python that it was taken at. The cells must be
those of the sweep: the same families, and the same share of the card.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sweep import PUBLIC
from sweeping.cells import Cell, cells_of
from sweeping.check import Bench
from sweeping.families import swept
from sweeping.limits import Limits
from sweeping.meters import Call
from sweeping.shared_card import take_share
from sweeping.traces import told

_EVENTS = 2_000_000


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the peaks of the cells that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="+", help="seed.index")
    parser.add_argument("--alone", action="store_true", help="without the cells of the group before it")
    parser.add_argument("--share", type=int, default=1, help="processes that have the card together")
    options = parser.parse_args(arguments)
    if options.share > 1:
        take_share(options.share)
    families = swept(False)
    bench = Bench(families, torch.device("cuda", torch.cuda.current_device()), "h200", Limits())
    for named in options.cells:
        seed, index = map(int, named.split("."))
        cells = [*itertools.islice(cells_of(seed, [*families.values()], PUBLIC), index + 1)]
        for cell in [] if options.alone else cells[:-1]:
            if cell.group == cells[-1].group:
                bench.run(cell)
        print(f"{named}  {cells[-1]}", flush=True)
        with_traces(bench, cells[-1])


def with_traces(bench: Bench, cell: Cell) -> None:
    """Run a cell; tell of each of our calls, and what the sweep makes of them."""
    meter, begun = bench._meter, list[bool]()
    begin, call = meter.begin, meter.call

    def beginning() -> None:
        begun.append(True)
        begin()

    def traced(run: Callable[[], Any]) -> Call:
        if not begun:  # the untiled model's
            return call(run)
        torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=_EVENTS)
        try:
            return call(run)
        finally:
            torch.cuda.synchronize()
            events = torch.cuda.memory._snapshot(None)["device_traces"][torch.cuda.current_device()]
            torch.cuda.memory._record_memory_history(enabled=None)
            for line in told(events):
                print(line, flush=True)

    meter.begin, meter.call = beginning, traced  # type: ignore[method-assign]
    try:
        facts = bench.run(cell)
    finally:
        meter.begin, meter.call = begin, call  # type: ignore[method-assign]
    said, peaks = facts.facts.get("said"), facts.facts.get("peaks", [])
    print(f"  said {(said or 0) >> 20} MiB, peaks {[int(peak) >> 20 for peak in peaks]} MiB {facts.fell}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
