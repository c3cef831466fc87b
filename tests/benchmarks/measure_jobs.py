"""Whole commands over folders of photos, beside a plain diffusers script and the engine alone.

``PYTHONPATH=tests/helpers python tests/benchmarks/measure_jobs.py --rows encode1024,skip --out rows.jsonl``

Photos are made, as JPEGs. The rate of a command is that from when a few photos are done to its last result, so that
start-up, which differs from run to run, and the end of the process are out; ``start`` is the time before. Of *skip*,
*small* and *busy* it is the slope between two runs, the quickest of three each. Rows, by name:

============  =========================================================================================================
encode1024    photos of 1024x1024 to latents; also encode512
decode1024    latents of such photos to PNG
sizes         200 photos of 30 sizes, the first photo of each size included
calls         ``TiledVAE.encode`` over ten sizes in turn: milliseconds a call
skip          5,000 photos of 64x64 that are done
small         400 photos of 64x64, the built-in VAE; the goal is the plain script's rate
busy          the same while another process is busy on each core: how many times as long
tiny          the first result of a run over 20,000 files of 16x16, seconds
============  =========================================================================================================
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from card import card_of
from measuring.compiled import keep_compiled_files
from measuring.models import folder_of
from measuring.options import machine
from measuring.photos import buckets, photos
from measuring.rows import Row, Rows
from measuring.timed import Timed

from tvae.pipeline.settings.cores import usable_cores
from tvae.presets import builtin

COLUMNS = {
    **{"row": "10", "tvae": "8.1f", "start": "6.1f", "plain": "7.1f", "times": "5.2f", "engine": "7.1f"},
    **{"goal": "7.1f", "met": "3"},
}
"""Rates in photos a second; start in seconds; times: over the plain script."""
ROWS = ("encode1024", "encode512", "decode1024", "sizes", "calls", "skip", "small", "busy", "tiny")
GOALS = {"encode1024": 95, "encode512": 400, "decode1024": 55, "sizes": 80, "calls": 11.5, "skip": 2000, "busy": 2.5}
TIMES = {"encode1024": (3.0, 4), "encode512": (2.4, 16)}
"""Goals over the plain script in batches of so many, by which they were set."""
COUNTS = {"encode1024": (50, 400), "encode512": (2000, 5000), "decode1024": (30, 250), "sizes": (2, 200)}
BUILTIN = str(Path(builtin.__file__).parent)


class Jobs:
    """Makes the rows."""

    def __init__(self, options: argparse.Namespace, rows: Rows) -> None:
        self._options, self._rows = options, rows
        self._work = Path(tempfile.mkdtemp(dir=options.folder, prefix="measured-jobs-"))
        self._made = Path(options.folder) / "measured-photos"
        self._vae = BUILTIN if options.tiny else str(folder_of("sdxl", False, "bfloat16"))
        dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
        how = options.device, dtype, options.preset, options.more, options.longest
        self._timed = Timed(self._work, self._vae, *how)

    def close(self) -> None:
        """Removes what was made, but for photos."""
        shutil.rmtree(self._work, ignore_errors=True)

    def measure(self, name: str) -> None:
        """One row."""
        self._rows.measure({"row": name}, lambda: self._row(name))

    def _row(self, name: str) -> Iterator[Row]:
        if name in ("encode1024", "encode512", "decode1024"):
            yield self._slope(name)
        elif name == "sizes":
            yield self._sizes()
        elif name == "calls":
            yield self._calls()
        elif name == "skip":
            yield self._skip()
        elif name == "tiny":
            yield self._tiny()
        else:
            yield self._small(busy=name == "busy")

    def _slope(self, name: str) -> Row:
        side, pixels = name[:6], int(name[6:])
        few, many = self._counts(name)
        pixels = 64 if self._options.tiny else pixels
        short, long = (photos(self._made / f"{pixels}x{n}", [(pixels, pixels)] * n) for n in (few, many))
        if side == "decode":
            for folder in (short, long):
                self._timed.command("encode", folder, self._work / f"latents-{folder.name}")
            short, long = (self._work / f"latents-{folder.name}" for folder in (short, long))
        self._timed.command(side, short, self._work / "warm")
        rate, start = self._timed.after(side, long, self._work / f"{name}-{long.name}", few)
        batches = [n for n in (16, 4, 1) if side == "encode" and 4 * n <= many] or [1]
        rates = {batch: self._timed.plain(side, long, batch, many) for batch in batches}
        best = max(rates, key=lambda batch: rates[batch])
        plain, note = rates[best], f"plain in batches of {best}; {few} and {many} photos"
        for times, batch in (TIMES[name],) if name in TIMES else ():
            if batch in rates:
                note += f"; plain of {batch} {rates[batch]:.1f}, {rate / rates[batch]:.2f} times as fast ({times})"
        asked = {"what": "engine", "size": (pixels, pixels), "side": side, "batches": (1, 2, 8), "longest": 3}
        engine = 1 / self._timed.beside(asked)["seconds"]
        row = {"tvae": rate, "start": start, "plain": plain, "times": rate / plain, "engine": engine}
        return self._judged(name, row, note)

    def _sizes(self) -> Row:
        few, many = self._counts("sizes")
        pixels, kinds = (64 * 64, 3) if self._options.tiny else (1 << 20, 30)
        sizes = buckets(pixels, kinds)
        mixed = [sizes[n * 7 % len(sizes)] for n in range(many)]
        short, long = (photos(self._made / f"sizes-{pixels}-{n}", mixed[:n]) for n in (few, many))
        self._timed.command("encode", short, self._work / "warm")
        rates, starts = zip(
            *[self._timed.after("encode", long, self._work / long.name, few) for _ in range(2)], strict=True
        )
        row = {"tvae": sum(rates) / 2, "start": sum(starts) / 2}
        return self._judged("sizes", row, note=f"{len(sizes)} sizes, {many} photos; {rates[0]:.1f}, {rates[1]:.1f}")

    def _calls(self) -> Row:
        sizes = buckets(128 * 128 if self._options.tiny else 1 << 20, 3 if self._options.tiny else 10)
        found = self._timed.beside({"what": "calls", "sizes": sizes})
        row = {"tvae": found["tvae"], "plain": found["diffusers"], "times": found["diffusers"] / found["tvae"]}
        row |= {"goal": GOALS["calls"], "met": "yes" if found["tvae"] <= GOALS["calls"] else "no"}
        rounds = ", ".join(map(str, found["tvae_rounds"]))
        note = f"ms a call, by rounds {rounds}; a size's first call up to {found['tvae_first']:.1f} more than its third"
        return row | found | {"note": note}

    def _skip(self) -> Row:
        few, many = (5, 50) if self._options.tiny else (100, 5000)
        folders = [photos(self._made / f"64x{count}", [(64, 64)] * count) for count in (few, many)]
        outs = [self._work / f"skip-{count}" for count in (few, many)]
        for each in zip(folders, outs, strict=True):
            self._timed.command("encode", *each, vae="builtin")
        seconds = self._quickest(folders, outs, anew=False)
        row = {"tvae": _rate(many - few, seconds), "start": seconds[0]}
        return self._judged("skip", row, note=f"{many} photos that are done")

    def _small(self, *, busy: bool) -> Row:
        few, many = (5, 40) if self._options.tiny else (20, 420)
        folders = [photos(self._made / f"64x{n}", [(64, 64)] * n) for n in (few, many)]
        outs = [self._work / "small"] * 2
        self._timed.command("encode", folders[1], self._work / "warm", vae="builtin")
        if not busy:
            plain: list[float] = []

            def script() -> None:
                plain.append(self._timed.plain("encode", folders[1], 1, many, vae=BUILTIN, workers=0))

            idle = _rate(many - few, self._quickest(folders, outs, script))
            row = {"tvae": idle, "plain": max(plain), "times": idle / max(plain), "goal": max(plain)}
            return row | {"met": "yes" if idle >= max(plain) else "no", "note": f"{1e3 / idle:.1f} ms a photo"}
        idle = _rate(many - few, self._quickest(folders, outs))
        process = multiprocessing.get_context("spawn").Process
        others = [process(target=_spin, daemon=True) for _ in range(usable_cores())]
        for other in others:
            other.start()
        try:
            loaded = _rate(many - few, self._quickest(folders, outs))
        finally:
            for other in others:
                other.kill()
        row = {"tvae": loaded, "plain": idle, "times": idle / loaded, "goal": GOALS["busy"]}
        met = "yes" if row["times"] <= GOALS["busy"] else "no"
        return row | {"met": met, "note": "plain: tvae on the idle machine; times: as long as there"}

    def _quickest(
        self,
        folders: Sequence[Path],
        outs: Sequence[Path],
        beside: Callable[[], object] = lambda: None,
        *,
        anew: bool = True,
    ) -> list[float]:
        """Seconds to encode each folder with the built-in VAE, the least of three; by turns with what is measured
        beside, since a core that others use as well is half as fast for some seconds."""
        found = []
        for _ in range(3):
            each = zip(folders, outs, strict=True)
            found.append([self._timed.command("encode", *one, vae="builtin", anew=anew) for one in each])
            beside()
        return [*map(min, *found)]

    def _tiny(self) -> Row:
        count = 50 if self._options.tiny else 20_000
        folder = photos(self._made / f"16x{count}", [(16, 16)] * count)
        out = self._work / "tiny"
        begun = found = 0.0
        for seconds, event in self._timed.heard(self._timed.words("encode", folder, out, "builtin")):
            if event["type"] == "run_started":
                begun = seconds
            if event["type"] == "item_done":
                found = seconds
                break
        return {"tvae": found, "start": begun, "note": f"seconds to the first of {count} results, and to run_started"}

    def _counts(self, name: str) -> tuple[int, int]:
        return (3, 12) if self._options.tiny else COUNTS[name]

    def _judged(self, name: str, row: Row, note: str) -> Row:
        goal = GOALS[name]
        return row | {"goal": float(goal), "met": "yes" if row["tvae"] >= goal else "no", "note": note}


def _rate(items: int, seconds: Sequence[float]) -> float:
    """By how much the longer of two runs took longer. RuntimeError where noise was larger than that."""
    if seconds[1] <= seconds[0]:
        raise RuntimeError(f"{items} items more took {seconds[1] - seconds[0]:.1f} s: the machine does other things")
    return items / (seconds[1] - seconds[0])


def _spin() -> None:
    while True:
        pass


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """The rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS), help=f"with commas: {', '.join(ROWS)}")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--preset", default=None)
    parser.add_argument("--dtype", default=None, help="bfloat16; on a CPU float32")
    parser.add_argument("--more", default="", help="further words for the commands, such as '--batch 4'")
    parser.add_argument("--tiny", action="store_true", help="a few tiny photos and the built-in VAE, to try the script")
    parser.add_argument("--out", default=None, help="file that rows are added to, a JSON object a line")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="for photos and results")
    parser.add_argument("--until", type=float, default=220.0, help="seconds after which no row is begun")
    parser.add_argument("--longest", type=float, default=120.0, help="seconds that one process may take")
    options = parser.parse_args(arguments)
    names = options.rows.split(",")
    if unknown := sorted({*names} - {*ROWS}):
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    keep_compiled_files(Path(options.folder))
    rows = Rows(COLUMNS, options.out, options.until, machine(card_of(options.device)))
    jobs = Jobs(options, rows)
    try:
        for name in names:
            jobs.measure(name)
    finally:
        jobs.close()
    rows.end()
    return rows.rows


if __name__ == "__main__":
    main(sys.argv[1:])
