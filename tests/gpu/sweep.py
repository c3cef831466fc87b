"""Random cells over family, side, size, frames, batch, type, budget and order of calls: does every claim hold there?

``PYTHONPATH=tests/helpers python tests/gpu/sweep.py --seed 1 --cells 100 --seconds 500 --out sweep.jsonl``

Each cell: numbers within law 1, the peak of memory within the plan and the budget, the first call within three times
the untiled model's own and five seconds (once its kernels are on disk), and without a budget the last of several calls
within twice that and a tenth of a second. One seed gives one list of cells. Cells that the file has results of are
passed over, so that the same command goes on where it ended; ``--again`` runs those that fell short or had kernels to
build, in a process that finds them. Ends with 1 where a cell falls short. The card must be this program's alone, or
that of as many sweeps as ``--share`` says, each of which has that part of its memory.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from sweeping.cells import Cell, Scale, cells_of
from sweeping.check import Bench, Result
from sweeping.families import swept
from sweeping.limits import Limits
from sweeping.report import Journal, measured, told
from sweeping.shared_card import take_share
from sweeping.untiled import is_lost

from tvae.pipeline.session.runner import RECORDED_AT

PUBLIC = Scale(least=0.1, most=12.0, large=40.0, huge=150.0)
TINY = Scale(least=0.002, most=0.03, large=0.06, huge=0.06, narrower=1.0, plain=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 where a cell falls short."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cells", type=int, default=100, help="of this seed, from its first")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny models")
    parser.add_argument("--seconds", type=float, default=500.0, help="after which no cell is begun")
    parser.add_argument("--slack", type=float, default=5.0, help="seconds of a first call beyond the threefold")
    parser.add_argument("--families", default=None, help="names, separated by commas; all by default")
    parser.add_argument("--out", type=Path, default=None, help="file that results are added to")
    parser.add_argument("--again", action="store_true", help="cells that fell short or built kernels")
    parser.add_argument("--share", type=int, default=1, help="sweeps that have the card together")
    parser.add_argument("--recorded", action="store_true", help="only cells that are recorded, without a budget")
    parser.add_argument("--report", action="store_true", help="run nothing, tell what the file has of all seeds")
    options = parser.parse_args(arguments)
    journal = Journal(options.out)
    rows = journal.rows if options.report else _run(options, journal)
    for line in told([measured(row, seconds=options.slack) for row in rows]):
        print(line, flush=True)
    return int(any(row["fell"] for row in rows))


def _run(options: argparse.Namespace, journal: Journal) -> list[dict[str, object]]:
    """The rows of cells that ran."""
    tiny = options.device == "cpu"
    if options.share > 1 and not tiny:
        take_share(options.share)
    families = swept(tiny)
    if options.families is not None:
        families = {name: families[name] for name in options.families.split(",")}
    device = torch.device("cuda", torch.cuda.current_device()) if not tiny else torch.device("cpu")
    limits = replace(Limits(), seconds=options.slack)
    bench = Bench(families, device, "cpu" if tiny else "h200", limits)
    begin, rows = time.perf_counter(), []
    drawn = cells_of(options.seed, [*families.values()], TINY if tiny else PUBLIC)
    cells: Iterator[Cell] = itertools.islice(drawn, options.cells)
    if options.recorded:
        cells = (cell for cell in cells if cell.calls == RECORDED_AT and cell.budget is None)
    wanted = [cell for cell in cells if not journal.done(cell, again=options.again)]
    for number, cell in enumerate(wanted):
        elapsed = time.perf_counter() - begin
        if elapsed > options.seconds:
            print(f"no time left for {len(wanted) - number} cells, from {cell.seed}.{cell.index} on", flush=True)
            break
        print(f"{elapsed:6.1f} s  {cell.seed}.{cell.index}  {cell.order}: {cell}", end="  ", flush=True)
        journal.begin(cell)
        try:
            result = bench.run(cell)
        except Exception as error:
            if not is_lost(error):
                raise
            result = Result(cell, {}, [f"the device is lost: {error}"])
        result.facts["took"] = round(time.perf_counter() - begin - elapsed, 2)
        journal.end(result)
        rows.append(result.to_json())
        print(("; ".join(result.fell) and f"FELL SHORT: {'; '.join(result.fell)}") or _brief(result), flush=True)
        if any("device is lost" in reason for reason in result.fell):
            break
    return rows


def _brief(result: Result) -> str:
    facts = result.facts
    if facts.get("skipped"):
        return str(facts["skipped"])
    told = [f"{key} {facts[key]:{form}}" for key, form in _BRIEF if isinstance(facts.get(key), float)]
    return "  ".join(told)


_BRIEF = (
    ("error", ".1e"),
    ("of_own", ".3f"),
    ("ratio", ".2f"),
    ("first", ".2f"),
    ("own_first", ".2f"),
    ("took", ".1f"),
)

if __name__ == "__main__":
    sys.exit(main())
