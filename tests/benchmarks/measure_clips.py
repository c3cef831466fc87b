"""Long clips: memory and time a frame by length, and the largest clips against the model's own call.

``PYTHONPATH=tests/helpers python tests/benchmarks/measure_clips.py lengths hunyuan-long --out rows.jsonl``

Rows, by name; each clip is in a process of its own:

==================  ==================================================================================================
lengths             wan21, cogvideox, mochi (decode) and ltx at 832x480, 33 and 129 frames (Mochi 31 and 127): memory
lengths-encode      the same of the sides that encode in steps or by frames
wan-17              Wan 2.1 decode and encode of 17, 33 and 129 frames: time a frame
hunyuan-long        HunyuanVideo decode, 129 frames 1280x720, in 24 GiB
hunyuan-largest     the largest clip of that size that its own call can do, and ours in 24 GiB, against ours in float32;
                    on to smaller ones, once each, until its own numbers are right, too
ltx-long            LTX decode, 241 frames 1280x704: its own call, ours whole, ours by frames
ltx-long-encode     the same, encode
seedvr2             1920x1080, 65 frames, in 12 GiB: decode and encode, against the module's own chunks
seedvr2-exact       1920x1080, 9 frames: errors of ours and of the module's chunks from the module in float32
==================  ==================================================================================================

The card must be this program's alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from card import GIB, card_of
from measuring.apart import Apart
from measuring.compare import compared
from measuring.models import folder_of, geometry_of
from measuring.options import common, fill_host, machine
from measuring.part import Part
from measuring.rows import Row, Rows

COLUMNS = {
    **{"row": "15", "config": "9", "side": "6", "size": "13", "way": "10"},
    **{"device": "7.2f", "tensors": "7.2f", "said": "6.2f", "host": "6.2f"},
    **{"first": "7.2f", "warm": "8.3f", "ms_frame": "8.2f", "ms_step": "8.2f"},
    **{"error": "8.2e", "of_own": "6.3f", "met": "3"},
}
"""Bytes in GiB and seconds, of the whole clip; ms_frame: of the warm pass; ms_step: its middle step, by its frames."""
LARGEST = (41, 37, 33, 29, 25, 21, 17, 13, 9)
"""Frames that HunyuanVideo's own call is tried with, in this order."""
SOUND = 0.5
"""Of its error: where ours is smaller than this share, its own call is wrong, and not by rounding."""


@dataclass(frozen=True)
class Clips:
    """What every row needs."""

    options: argparse.Namespace
    apart: Apart
    rows: Rows
    folder: Path

    def size(self, width: int, height: int, frames: int) -> tuple[int, int, int]:
        """Tiny where the script is only tried: and few frames."""
        return (32, 32, 9 + frames // 32) if self.options.tiny else (width, height, frames)

    def clip(
        self,
        row: str,
        config: str,
        side: str,
        size: tuple[int, int, int],
        way: str,
        *,
        vram: float | None = None,
        dtype: str = "bfloat16",
        save: Path | None = None,
        passes: int = 2,
    ) -> None:
        """One clip through steps, frames, or the module's own steps."""
        names = {"row": row, "config": config, "side": side, "size": "x".join(map(str, size))}
        names |= {"way": way if vram is None else f"{way} {vram:g}"}
        self.rows.measure(names, lambda: self._clip(config, side, size, way, vram, dtype, save, passes))

    def _clip(
        self,
        config: str,
        side: str,
        size: tuple[int, int, int],
        way: str,
        vram: float | None,
        dtype: str,
        save: Path | None,
        passes: int,
    ) -> Iterator[Row]:
        options = self.options
        of = geometry_of(config, options.tiny)
        frames = of.lead + -(-max(0, size[2] - of.lead) // (of.temporal or 1)) * (of.temporal or 1)
        if way != "module":
            folder_of(config, options.tiny, dtype)  # outside the measured process
        request = {"config": config, "tiny": options.tiny, "side": side, "size": size, "way": way, "dtype": dtype}
        request |= {"device": options.device, "preset": options.preset, "vram": vram, "passes": passes}
        request |= {"save": None if save is None else str(save)}
        cap = None if vram is None or options.no_cap else int(vram * GIB)
        seconds = min(self.rows.left + 60, options.longest)
        outcome = self.apart.run("clip", request, seconds=seconds, cap=cap)
        answer = outcome.answer
        if "refused" in answer:
            yield {"met": "no", "note": f"refused: {answer['refused']}"}
            return
        row: Row = {**answer, "device": outcome.device / GIB, "host": outcome.host / GIB, "frames": frames}
        row |= {key: answer[key] / GIB for key in ("tensors", "said") if key in answer}
        row |= {"warm": answer["seconds"], "ms_frame": 1e3 * answer["seconds"] / frames}
        if answer["steps"] > 2:
            per = (of.temporal or 1) * max(1, of.latent_group)
            row["ms_step"] = 1e3 * answer["step"] / per
        if vram is not None:
            row["met"] = "yes" if outcome.device <= vram * GIB and not answer.get("note") else "no"
        yield row

    def prime(self, config: str, side: str, size: tuple[int, int, int], way: str) -> None:
        """Captures and builds, so that processes that are compared find the same on disk."""
        if not self.options.here and self.rows.left > 0:
            found = self._clip(config, side, (*size[:2], min(size[2], 17)), way, None, "bfloat16", None, 1)
            with suppress(RuntimeError):  # the row itself will tell
                next(found)

    def part(self, row: str, config: str, side: str, size: tuple[int, int, int], ways: Sequence[str]) -> list[Row]:
        """One clip in one call, by all these ways; the rows that came of it."""
        before = len(self.rows.rows)
        text = "x".join(map(str, size))
        part = Part(f"{config}/{side}", text, ways, self.options, self.apart, row=row)
        part.measure(self.rows, self.folder)
        return self.rows.rows[before:]


def lengths(run: Clips, row: str) -> None:
    """Short and long clips of those that stream."""
    if row == "lengths":
        for config, way in (("wan21", "steps"), ("cogvideox", "steps"), ("mochi", "steps"), ("ltx", "frames")):
            run.prime(config, "decode", run.size(832, 480, 17), way)
            for frames in (31, 127) if config == "mochi" else (33, 129):
                run.clip(row, config, "decode", run.size(832, 480, frames), way)
    else:
        for config, way in (("wan21", "steps"), ("cogvideox", "steps"), ("ltx", "frames")):
            run.prime(config, "encode", run.size(832, 480, 17), way)
            for frames in (33, 129):
                run.clip(row, config, "encode", run.size(832, 480, frames), way)


def wan(run: Clips, row: str) -> None:
    """Time a frame does not grow."""
    for side in ("decode", "encode"):
        for frames in (17, 33, 129):
            run.clip(row, "wan21", side, run.size(832, 480, frames), "steps", passes=3)


def hunyuan_long(run: Clips, row: str) -> None:
    """What its own call cannot do."""
    run.part(row, "hunyuan", "decode", run.size(1280, 720, 129), ("24",))


def hunyuan_largest(run: Clips, row: str) -> None:
    """Fewer frames until its own call has room, and gives what it gives where there is more of that."""
    once = replace(run, options=argparse.Namespace(**{**vars(run.options), "warm": 0}))
    room = False
    for frames in (n for n in LARGEST if n <= run.options.frames):
        size = run.size(1280, 720, frames)
        if not room:
            found = once.part(row, "hunyuan", "decode", size, ("diffusers",))
            room = not found or not found[-1].get("failed")
        if room:
            found = once.part(row, "hunyuan", "decode", size, ("float32", "diffusers", "24"))
            if not found or found[-1].get("of_own", 1.0) > SOUND:
                return


def ltx_long(run: Clips, row: str) -> None:
    """Time and memory against its own call."""
    side, size = ("encode" if row.endswith("encode") else "decode"), run.size(1280, 704, 241)
    run.part(row, "ltx", side, size, ("float32", "diffusers", "0"))
    run.clip(row, "ltx", side, size, "frames")


def seedvr2(run: Clips, row: str) -> None:
    """Ours in a budget, and the module's own chunks in all of the card."""
    for side in ("decode", "encode"):
        run.prime("seedvr2", side, run.size(1920, 1080, 9), "steps")
        for way, vram in (("steps", 12.0), ("steps", None), ("module", None)):
            run.clip(row, "seedvr2", side, run.size(1920, 1080, 65), way, vram=vram)


def seedvr2_exact(run: Clips, row: str) -> None:
    """Errors from the module in float32, of which a few frames tell as much as many."""
    size = run.size(1920, 1080, 9)
    for side in ("decode", "encode"):
        files = [run.folder / f"seedvr2-{side}-{n}.pt" for n in range(3)]
        ways = (("module", None, "float32"), ("module", None, "bfloat16"), ("steps", 12.0, "bfloat16"))
        own = None
        for file, (way, vram, dtype) in zip(files, ways, strict=True):
            run.clip(row, "seedvr2", side, size, way, vram=vram, dtype=dtype, save=file, passes=1)
            if file != files[0] and file.exists() and files[0].exists():
                error, _ = compared(file, files[0])
                own = own or error
                told = {"error": error, "of_own": error / own, "met": "yes" if error <= 1.02 * own else "no"}
                run.rows.add({"row": row, "config": "seedvr2", "side": side, "way": f"{way} error", **told})
        for file in files:
            file.unlink(missing_ok=True)


ROWS = {
    **{"lengths": lengths, "lengths-encode": lengths, "wan-17": wan},
    **{"hunyuan-long": hunyuan_long, "hunyuan-largest": hunyuan_largest},
    **{"ltx-long": ltx_long, "ltx-long-encode": ltx_long, "seedvr2": seedvr2, "seedvr2-exact": seedvr2_exact},
}


def told(rows: Sequence[Row]) -> Iterator[str]:
    """Long clips against short ones, ours against the model's own."""
    clips: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.get("frames") and row["way"] in ("steps", "frames"):
            clips.setdefault((row["row"], row["config"], row["side"]), []).append(row)
    for (name, config, side), found in clips.items():
        short, long = found[0], found[-1]
        if short["frames"] < long["frames"]:
            times = {key: long[key] / short[key] for key in ("tensors", "device", "ms_frame") if short[key]}
            words = ", ".join(f"{key} x{value:.3f}" for key, value in times.items())
            yield f"{name} {config} {side}, {long['frames']} frames against {short['frames']}: {words}"
    for row in rows:
        theirs = [r for r in rows if r["row"] == row["row"] and r["side"] == row["side"] and r.get("warm")]
        theirs = [r for r in theirs if r["way"] in ("diffusers", "module") and r["size"] == row.get("size")]
        if theirs and row["way"] not in ("diffusers", "module", "float32") and row.get("warm"):
            one = theirs[-1]
            what = f"{row['row']} {row['side']} {row['size']} {row['way']}"
            memory = row["device"] / one["device"] if one["device"] else float("nan")
            yield f"{what}: time x{row['warm'] / one['warm']:.3f} of {one['way']}'s, memory x{memory:.3f}"


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """The rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=tuple(ROWS), metavar="ROW")
    parser.add_argument("--warm", type=int, default=2, help="calls after the first, of whole clips")
    parser.add_argument("--frames", type=int, default=LARGEST[0], help="that hunyuan-largest begins with")
    parser.add_argument("--no-cap", action="store_true", help="watch the card, but leave all of it free")
    common(parser)
    options = parser.parse_args(arguments)
    fill_host(options)
    card = card_of(options.device)
    rows = Rows(COLUMNS, options.out, options.until, machine(card))
    with tempfile.TemporaryDirectory(prefix="measured-", dir=options.folder) as folder:
        run = Clips(options, Apart(card, options.here), rows, Path(folder))
        for name in options.names:
            ROWS[name](run, name)
    for line in told(rows.end()):
        print(line, flush=True)
    return rows.rows


if __name__ == "__main__":
    main(sys.argv[1:])
