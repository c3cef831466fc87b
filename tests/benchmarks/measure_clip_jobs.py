"""Whole commands over clips, by an image VAE and by a video VAE, beside the engine alone.

``PYTHONPATH=tests/helpers python tests/benchmarks/measure_clip_jobs.py sdxl/encode wan21/decode --out rows.jsonl``

Clips are made, in H.264. The rate of a command is the slope between a short clip and a long one, so that start-up is
out: of ``--repeat`` runs of each, the least. ``engine``: its own rate, of steps of a video VAE, or of the best batch of
an image VAE. ``film``: the rate of reading the long clip alone, or of writing it. Random weights decode to noise, on
which x264 takes all the time: the decoder's last layer is made small, so that results are as soft as films are.

The goal of a video VAE is 0.9 of ``engine``; of an image VAE a number of frames, or 0.9 of the slower of ``engine`` and
``film`` where that is less: the note names it then.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from card import card_of
from measuring.apart import Apart
from measuring.compiled import keep_compiled_files
from measuring.films import film
from measuring.models import soft_folder_of
from measuring.options import common, fill_host, machine
from measuring.rows import Row, Rows

COLUMNS = {
    **{"row": "13", "frames": "9", "short": "6.1f", "long": "6.1f", "tvae": "7.1f", "engine": "7.1f"},
    **{"film": "7.1f", "share": "5.2f", "goal": "7.1f", "met": "3"},
}
"""short, long: seconds of the whole command; rates in frames a second; share: of the engine's rate."""
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

    def close(self) -> None:
        """Removes what was made, but for clips and models."""
        shutil.rmtree(self._work, ignore_errors=True)

    def measure(self, name: str) -> None:
        """One row."""
        self._rows.measure({"row": name}, lambda: self._row(name))

    def _row(self, name: str) -> Iterator[Row]:
        model, side = name.split("/")
        vae = soft_folder_of(model, self._options.tiny, self._dtype)
        counts = sorted(int(count) for count in self._options.frames.split(","))
        inputs = [film(self._films, *self._size, count) for count in counts]
        if side == "decode":
            made = [self._work / f"{model}-{count}" for count in counts]
            for clip, latents in zip(inputs, made, strict=True):
                self._command("encode", clip, latents, vae)
            inputs = made
        self._command(side, inputs[0], self._out(side, 0), vae)  # captures and builds
        seconds = [
            min(self._command(side, clip, self._out(side, n), vae) for _ in range(self._options.repeat))
            for n, clip in enumerate(inputs)
        ]
        if seconds[1] <= seconds[0]:
            raise RuntimeError(f"{counts[1]} frames took no longer than {counts[0]}: the machine does other things")
        rate = (counts[1] - counts[0]) / (seconds[1] - seconds[0])
        engine = self._engine(model, side, vae, counts[0])
        alone = self._film(side, counts[1])
        goal, note = SHARE * engine, ""
        if name in GOALS:
            goal = min(GOALS[name], SHARE * min(engine, alone))
            if goal < GOALS[name]:
                note = f"{SHARE} of {'engine' if engine < alone else 'film'} alone"
        row = {"frames": f"{counts[0]}, {counts[1]}", "short": seconds[0], "long": seconds[1], "tvae": rate}
        row |= {"engine": engine, "film": alone, "share": rate / engine}
        yield row | {"goal": goal, "met": "yes" if rate >= goal else "no", "note": note}

    def _film(self, side: str, frames: int) -> float:
        """Frames a second that are read or written, the better of two."""
        asked = {"what": "film", "side": side, "film": str(film(self._films, *self._size, frames))}
        asked |= {"out": str(self._work / "alone.mp4")}
        script = str(Path(__file__).with_name("beside_jobs.py"))
        told = [self._timed([sys.executable, script, json.dumps(asked)])[1] for _ in range(2)]
        return 1 / min(float(json.loads(each.splitlines()[-1])["seconds"]) for each in told)

    def _out(self, side: str, number: int) -> Path:
        return self._work / (f"{number}.mp4" if side == "decode" else f"latents-{number}")

    def _command(self, side: str, clip: Path, out: Path, vae: Path) -> float:
        """Seconds of the whole command."""
        if out.is_dir():
            shutil.rmtree(out)
        out.unlink(missing_ok=True)
        words = [sys.executable, "-m", "tvae.cli", side, str(clip), "-o", str(out), "--vae", str(vae), "-q"]
        words += ["--device", self._options.device, "--dtype", self._dtype, "--preset", self._options.preset]
        return self._timed([*words, *self._options.more.split()])[0]

    def _timed(self, words: Sequence[str]) -> tuple[float, str]:
        begin = time.perf_counter()
        done = subprocess.run(words, capture_output=True, text=True, timeout=self._options.longest)
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()}")
        return time.perf_counter() - begin, done.stdout

    def _engine(self, model: str, side: str, vae: Path, frames: int) -> float:
        """Frames a second."""
        asked: dict[str, Any] = {"side": side, "dtype": self._dtype, "device": self._options.device}
        if model == "sdxl":
            asked |= {"what": "engine", "vae": str(vae), "size": self._size, "batches": (1, 2, 4), "longest": 3}
            script = Path(__file__).with_name("beside_jobs.py")
            told = self._timed([sys.executable, str(script), json.dumps(asked)])[1]
            return 1 / float(json.loads(told.splitlines()[-1])["seconds"])
        asked |= {"config": model, "tiny": self._options.tiny, "size": (*self._size, frames), "way": "steps"}
        asked |= {"preset": self._options.preset, "vram": None, "passes": 2, "save": None}
        apart = Apart(card_of(self._options.device), here=self._options.here)
        return frames / float(apart.run("clip", asked, seconds=self._options.longest).answer["seconds"])


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """The rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"all, or some of {', '.join(ROWS)}")
    parser.add_argument("--frames", default="97,289", help="of the short clip and the long one")
    parser.add_argument("--repeat", type=int, default=4, help="runs of each: starts differ by some 0.2 s")
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
