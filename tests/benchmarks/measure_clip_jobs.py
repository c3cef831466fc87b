"""Whole commands over clips, by an image VAE and by a video VAE, beside the engine alone.

``PYTHONPATH=tests/helpers python tests/benchmarks/measure_clip_jobs.py sdxl/encode wan21/decode --out rows.jsonl``

Clips are made, in H.264. The rate of a command is that from when at most a third of the frames are done, as its events
tell, until the result is complete. Start-up, which differs by up to a second from run to run, and the end of the
process are out. Of ``--repeat`` runs it is the median. ``start``: the time before, of the same run.
``engine``: its own rate, of steps of a video VAE, or of the best batch of an image VAE. ``film``: the rate of reading
the clip alone, or of writing it. Random weights decode to noise, on which x264 takes all the time: the decoder's last
layer is made small, so that results are as soft as films are.

The goal of a video VAE is 0.9 of ``engine``; of an image VAE a number of frames, or 0.9 of the slower of ``engine`` and
``film`` where that is less: the note names it then.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from card import card_of
from measuring.apart import Apart
from measuring.compiled import keep_compiled_files
from measuring.films import film
from measuring.models import soft_folder_of
from measuring.options import common, fill_host, machine
from measuring.rows import Row, Rows
from measuring.timed import Timed

COLUMNS = {
    **{"row": "13", "frames": "6", "start": "6.1f", "tvae": "7.1f", "engine": "7.1f"},
    **{"film": "7.1f", "share": "5.2f", "goal": "7.1f", "met": "3"},
}
"""start in seconds; rates in frames a second; share: of the engine's rate."""
ROWS = ("sdxl/encode", "sdxl/decode", "wan21/encode", "wan21/decode")
GOALS = {"sdxl/encode": 110.0, "sdxl/decode": 65.0}
SHARE = 0.9
"""Of the engine's rate: the goal of video VAEs, and of others where the engine or the film is slower than theirs."""
TINY = (64, 48)


class ClipJobs:
    """Makes the rows."""

    def __init__(self, options: argparse.Namespace, rows: Rows) -> None:
        self._options, self._rows = options, rows
        self._work = Path(tempfile.mkdtemp(dir=options.folder, prefix="measured-clip-jobs-"))
        self._films = Path(options.folder) / "measured-films"
        self._size = TINY if options.tiny else (1280, 720)
        self._dtype = "bfloat16" if options.device == "cuda" else "float32"
        how = options.device, self._dtype, options.preset, options.more, options.longest
        self._timed = Timed(self._work, "", *how)

    def close(self) -> None:
        """Removes what was made, but for clips and models."""
        shutil.rmtree(self._work, ignore_errors=True)

    def measure(self, name: str) -> None:
        """One row."""
        self._rows.measure({"row": name}, lambda: self._row(name))

    def _row(self, name: str) -> Iterator[Row]:
        model, side = name.split("/")
        vae, frames = str(soft_folder_of(model, self._options.tiny, self._dtype)), self._options.frames
        clip = given = film(self._films, *self._size, frames)
        if side == "decode":
            given = self._work / f"{model}-latents"
            self._timed.command("encode", clip, given, vae)
        out = self._work / ("clip.mp4" if side == "decode" else "latents")
        self._timed.command(side, given, out, vae)  # captures and builds
        runs = [self._timed.within(side, given, out, vae) for _ in range(self._options.repeat)]
        rate, start = sorted(runs)[len(runs) // 2]
        engine = self._engine(model, side, vae, frames)
        alone = self._film(side, clip)
        goal, note = SHARE * engine, ""
        if name in GOALS:
            goal = min(GOALS[name], SHARE * min(engine, alone))
            if goal < GOALS[name]:
                note = f"{SHARE} of {'engine' if engine < alone else 'film'} alone"
        row = {"frames": frames, "start": start, "tvae": rate, "engine": engine, "film": alone, "share": rate / engine}
        yield row | {"goal": goal, "met": "yes" if rate >= goal else "no", "note": note}

    def _film(self, side: str, clip: Path) -> float:
        """Frames a second that are read or written, the better of two."""
        asked = {"what": "film", "side": side, "film": str(clip), "out": str(self._work / "alone.mp4")}
        return 1 / min(float(self._timed.beside(asked)["seconds"]) for _ in range(2))

    def _engine(self, model: str, side: str, vae: str, frames: int) -> float:
        """Frames a second."""
        if model == "sdxl":
            asked = {"what": "engine", "side": side, "size": self._size, "batches": (1, 2, 4), "longest": 3}
            return 1 / float(self._timed.beside(asked, vae)["seconds"])
        asked = {"side": side, "dtype": self._dtype, "device": self._options.device}
        asked |= {"config": model, "tiny": self._options.tiny, "size": (*self._size, frames), "way": "steps"}
        asked |= {"preset": self._options.preset, "vram": None, "passes": 2, "save": None}
        apart = Apart(card_of(self._options.device), here=self._options.here)
        return frames / float(apart.run("clip", asked, seconds=self._options.longest).answer["seconds"])


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """The rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"all, or some of {', '.join(ROWS)}")
    parser.add_argument("--frames", type=int, default=289)
    parser.add_argument("--repeat", type=int, default=3, help="runs, of which the median is told")
    parser.add_argument("--more", default="", help="further words for the commands, such as '--vram 8'")
    common(parser)
    options = parser.parse_args(arguments)
    names = options.rows or [*ROWS]
    if unknown := sorted({*names} - {*ROWS}):
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    fill_host(options)
    keep_compiled_files(Path(options.folder))
    rows = Rows(COLUMNS, options.out, options.until, machine(card_of(options.device)))
    jobs = ClipJobs(options, rows)
    try:
        for name in names:
            jobs.measure(name)
    finally:
        jobs.close()
    rows.end()
    return rows.rows


if __name__ == "__main__":
    main(sys.argv[1:])
