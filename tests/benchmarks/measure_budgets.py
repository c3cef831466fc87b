"""Memory that is named, at large sizes: what the process took of the card, what was said, how long it took, and whether
the numbers are the unlimited run's.

``PYTHONPATH=tests/helpers python tests/benchmarks/measure_budgets.py decode:2048,4096 encode:8192@0,24,8``

A part is ``[config/]side:sizes[@ways]``. Sizes are N, WxH or WxHxT, a config is a name of ``tvae bench vae --config``.
Ways are budgets in GiB, each in a process of its own that has no more than that of the card (0: no budget); ``least``
(the budget that a refusal named, or the plan of the run without one); ``float32`` (ours, what errors are measured
against); and the model's own calls, ``diffusers`` (in bfloat16), ``diffusers32`` and ``tiled``. Left out, they are
0, 24, 12, 8 and 6. The card must be this program's alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from card import GIB, card_of, host_memory
from measuring.apart import Apart
from measuring.options import common, fill_host, machine
from measuring.part import Part
from measuring.rows import Row, Rows

USUAL = "0,24,12,8,6"
COLUMNS = {
    **{"config": "8", "side": "6", "size": "14", "way": "10"},
    **{"device": "7.2f", "tensors": "7.2f", "said": "6.2f", "ratio": "5.2f", "beside": "6.2f"},
    **{"host": "7.2f", "said_host": "9.2f", "said_disk": "9.2f"},
    **{"planning": "8.1f", "first": "8.2f", "warm": "8.3f", "retries": "7.1f", "s_TFLOP": "7.5f"},
    **{"times": "5.2f", "differs": "8.1e", "error": "8.2e", "of_own": "6.3f", "met": "3"},
}
"""Bytes in GiB and seconds. ratio: said over tensors; beside: of the device what is no tensor of the run; retries: of
the allocator in a warm run; times: warm over that of the run without a budget; of_own: the error over that of the first
other way with one."""


def told(rows: Sequence[Row]) -> Iterator[str]:
    """What only several rows together show: time by work from 2048 to 8192, and ours against blended tiling."""
    free = {(r["config"], r["side"], r["size"]): r for r in rows if r["way"] == "0" and r.get("s_TFLOP")}
    for (config, side, size), row in free.items():
        small = free.get((config, side, "2048"))
        if small is not None and size != "2048":
            ratio = row["s_TFLOP"] / small["s_TFLOP"]
            yield f"{config} {side} {size}: {ratio:.2f} times the seconds per TFLOP of 2048 (goal at 8192: 1.3)"
    for row in rows:
        if row["way"] == "tiled" and row.get("warm"):
            key = (row["side"], row["size"], "8")
            for one in (r for r in rows if (r["side"], r["size"], r["way"]) == key and r.get("warm")):
                times = row["warm"] / one["warm"]
                yield f"{row['side']} {row['size']} at 8 GiB: {times:.2f} times as fast as blended tiling"


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """The rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", metavar="[CONFIG/]SIDE:SIZES[@WAYS]")
    parser.add_argument("--warm", type=int, default=3, help="runs after the first, below 8192")
    parser.add_argument("--no-cap", action="store_true", help="watch the card, but leave all of it free")
    common(parser)
    options = parser.parse_args(arguments)
    fill_host(options)
    card = card_of(options.device)
    total, used = host_memory()
    about = {**machine(card), "host GiB": round(total / GIB, 1), "in use": round(used / GIB, 1)}
    rows = Rows(COLUMNS, options.out, options.until, about)
    with tempfile.TemporaryDirectory(prefix="measured-", dir=options.folder) as folder:
        for part in options.parts:
            name, _, rest = part.partition(":")
            sizes, _, ways = rest.partition("@")
            for size in sizes.split(","):
                each = Part(name, size, (ways or USUAL).split(","), options, Apart(card, options.here))
                each.measure(rows, Path(folder))
    for line in told(rows.end()):
        print(line, flush=True)
    return rows.rows


if __name__ == "__main__":
    main(sys.argv[1:])
