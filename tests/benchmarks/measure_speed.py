"""Times against goals: whole VAEs beside diffusers and ``torch.compile``, kernels beside a copy, first results.

``PYTHONPATH=tests/helpers python tests/benchmarks/measure_speed.py decode wan hunyuan kernels --out rows.jsonl``

Rows, by name; ``decode`` and the like stand for several:

=================  ===================================================================================================
decode, encode     SDXL's shape at 512, 1024, 2048 and (decode) 4096: decode512, encode1024 and so on
batches            decode and encode of 4 and 16 pictures of 512x512: decode512x4 and so on
wan, hunyuan       17 frames 832x480, decode; also wan-encode, hunyuan-encode
kernels            group_stats, norm_act, add_stats: share of a copy's bandwidth, by level
attention          65,536 tokens in one head of 512: TFLOP/s and error against float64, by level
first-decode       first results of SDXL 1024x1024, with empty caches and with those left: everybody's. In copies of a
                   process that has loaded the libraries, which a first result does not count
first-encode       the same, encode; also first-wan, first-hunyuan: decode
first-levels       the same, decode: ours at each level
profile-decode     where the time of ours goes in a first call, caches empty and then as left; also profile-encode,
                   profile-wan, profile-hunyuan
=================  ===================================================================================================

The card must be this program's alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from card import Card, card_of
from measuring.apart import Apart
from measuring.heard import heard
from measuring.models import geometry_of, module_of
from measuring.options import common, fill_host, machine
from measuring.rows import Row, Rows

from tvae.kernels import LEVELS
from tvae.pipeline.bench.first_use import FirstUseModel, caches_in
from tvae.pipeline.bench.kernels import Ceiling, bench_kernels
from tvae.pipeline.bench.vae import bench_vae, make_case
from tvae.pipeline.device import choose_preset
from tvae.presets import Preset
from tvae.presets.text import text_of

COLUMNS = {
    **{"row": "14", "run": "13", "ms": "9.3f", "ms_frame": "9.3f", "goal": "7.1f", "met": "3"},
    **{"first": "7.2f", "again": "7.2f", "adds": "6.2f", "GiB": "6.2f", "error": "8.2e", "speed": "6.2f"},
    **{"share": "5.3f", "rate": "8.1f"},
}
"""Milliseconds; seconds of first results; rate: GB/s or TFLOP/s; speed: over diffusers untiled; adds: to diffusers'
first result, seconds."""
ADDED = 5.0
"""Seconds that anything but compilation may add to the first result."""
SHARE, RATE = 0.85, 450.0
"""Of a copy's bandwidth; TFLOP/s of attention."""


@dataclass(frozen=True)
class Work:
    """A row of whole VAEs. goal: milliseconds of ours in all."""

    config: str
    side: Any
    size: tuple[int, int]
    goal: float | None = None
    batch: int = 1
    frames: int | None = None
    rivals: tuple[str, ...] = ("diffusers", "compile", "tvae")
    reference: bool = True


_CLIP: dict[str, Any] = {"size": (832, 480), "frames": 17, "rivals": ("diffusers", "tvae")}
WORKS = {
    "decode512": Work("sdxl", "decode", (512, 512), 5.0),
    "decode1024": Work("sdxl", "decode", (1024, 1024), 16.0),
    "decode2048": Work("sdxl", "decode", (2048, 2048), 80.0, rivals=("diffusers", "tiled", "compile", "tvae")),
    "decode4096": Work("sdxl", "decode", (4096, 4096), 560.0, rivals=("tiled", "tvae"), reference=False),
    "untiled4096": Work("sdxl", "decode", (4096, 4096), rivals=("diffusers", "tvae"), reference=False),
    "encode512": Work("sdxl", "encode", (512, 512)),
    "encode1024": Work("sdxl", "encode", (1024, 1024), 11.0),
    "encode2048": Work("sdxl", "encode", (2048, 2048), 52.0),
    **{
        f"{side}512x{n}": Work("sdxl", side, (512, 512), goal, batch=n)
        for side, goals in (("decode", (20.0, 80.0)), ("encode", (None, None)))
        for n, goal in zip((4, 16), goals, strict=True)
    },
    "wan": Work("wan21", "decode", goal=180.0, **_CLIP),
    "hunyuan": Work("hunyuan", "decode", goal=260.0, **_CLIP),
    "wan-encode": Work("wan21", "encode", **_CLIP),
    "hunyuan-encode": Work("hunyuan", "encode", **_CLIP),
}
GROUPS = {
    "decode": ("decode512", "decode1024", "decode2048", "decode4096"),
    "encode": ("encode512", "encode1024", "encode2048"),
    "batches": ("decode512x4", "decode512x16", "encode512x4", "encode512x16"),
}
OTHERS = (
    *("kernels", "attention", "first-decode", "first-encode", "first-wan", "first-hunyuan", "first-levels"),
    *("profile-decode", "profile-encode", "profile-wan", "profile-hunyuan"),
)


class Speed:
    """What every row needs."""

    def __init__(self, options: argparse.Namespace, rows: Rows, card: Card) -> None:
        self._options, self._rows, self._card = options, rows, card
        self._preset: Preset = choose_preset(options.preset, card.device)
        self._model: tuple[str, Any] = ("", None)

    def measure(self, name: str) -> None:
        """One row's contenders, each as soon as it is known."""
        if name in WORKS:
            self._rows.measure({"row": name}, lambda: self._works(WORKS[name]))
        elif name in ("kernels", "attention"):
            self._rows.measure({"row": name}, self._kernels if name == "kernels" else self._attention)
        elif name == "first-levels":
            self._levels()
        elif name.startswith("first-"):
            self._firsts(name)
        else:
            self._rows.measure({"row": name}, lambda: self._profile(name.partition("-")[2]))

    def _works(self, work: Work) -> Iterator[Row]:
        tiny, device = self._options.tiny, self._card.device
        if self._model[0] != work.config:
            module_of.cache_clear()
            self._model = (work.config, module_of(work.config, tiny, "bfloat16", str(device)))
        width, height = (64, 64) if tiny else work.size
        frames = work.frames and (5 if tiny else work.frames)
        case = make_case(geometry_of(work.config, tiny), work.side, width, height, work.batch, frames)
        exact = torch.float32 if work.reference and not self._options.no_reference else None
        repeat = self._options.repeat
        rivals = [name for name in work.rivals if name not in self._options.without]
        with heard() as said:
            found = [
                *bench_vae(
                    self._model[1], [case], rivals, self._preset, device, torch.bfloat16, reference=exact, repeat=repeat
                )
            ]
        for row in found:
            ms = None if row.seconds is None else 1e3 * row.seconds
            told: Row = {**row.to_json(), "run": row.rival, "ms": ms, "first": row.first_seconds}
            told |= {"speed": row.speedup, "GiB": None if row.peak_bytes is None else row.peak_bytes / 2**30}
            if row.seconds_per_frame is not None and (case.batch > 1 or case.frames):
                told["ms_frame"] = 1e3 * row.seconds_per_frame
            if row.rival == "tvae" and work.goal is not None and ms is not None:
                told |= {"goal": work.goal, "met": "yes" if ms <= work.goal else "no"}
            told["note"] = row.reason or ("" if row.status == "ok" else row.status)
            told |= {"heard": said} if row.rival == "tvae" else {}
            yield told

    def _kernels(self) -> Iterator[Row]:
        size = 32 if self._options.tiny else 1024
        for channels in (32,) if self._options.tiny else (128, 256):
            yield from self._of_kernels(("group_stats", "norm_act", "add_stats"), size, channels, "copy", SHARE)

    def _attention(self) -> Iterator[Row]:
        size = 128 if self._options.tiny else 2048  # an eighth of it, squared, are the tokens
        yield from self._of_kernels(("wide_attention",), size, 32 if self._options.tiny else 128, "matrix", None)

    def _of_kernels(
        self, operations: Sequence[str], size: int, channels: int, kind: str, goal: float | None
    ) -> Iterator[Row]:
        levels = [level for level in LEVELS if level not in ("compile", "script", *self._options.without)]
        found = bench_kernels(
            *(self._preset, self._card.device, torch.bfloat16),
            **{"size": size, "channels": channels, "levels": levels, "operations": operations, "quick": True},
        )
        scale = 1e9 if kind == "copy" else 1e12
        for row in found:
            if isinstance(row, Ceiling):
                yield {"run": f"{row.kind} {channels}", "rate": row.rate / (1e9 if row.kind == "copy" else 1e12)}
                continue
            told: Row = {**row.to_json(), "run": f"{row.operation} {row.level}", "share": row.share}
            told |= {"ms": None if row.seconds is None else 1e3 * row.seconds, "note": row.reason or ""}
            if row.launched_seconds is not None:
                told["note"] = f"{1e3 * row.launched_seconds:.3f} ms where the host launches it {told['note']}".rstrip()
            told |= {"channels": channels, "size": size}
            if row.rate is not None and row.share is not None:
                told["rate"] = row.rate / scale
                fine = row.share >= goal if goal else told["rate"] >= RATE
                told |= {"met": "yes" if fine else "no"} if row.chosen else {}
            yield told

    def _firsts(self, name: str) -> None:
        base: list[float] = []
        for rival in ("diffusers", "compile", "tvae"):
            if rival not in self._options.without:
                names = {"row": name, "run": rival}
                self._rows.measure(names, lambda r=rival: self._first(name, r, self._options.preset, base))  # type: ignore[misc]

    def _levels(self) -> None:
        base: list[float] = []
        names = {"row": "first-levels", "run": "diffusers"}
        self._rows.measure(names, lambda: self._first("decode", "diffusers", self._options.preset, base))
        for level in LEVELS:
            if level not in self._options.without:
                names = {"row": "first-levels", "run": f"tvae {level}"}
                self._rows.measure(names, lambda one=level: self._at_level(one, base))  # type: ignore[misc]

    def _at_level(self, level: str, base: list[float]) -> Iterator[Row]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{level}.toml"
            file.write_text(text_of(dataclasses.replace(self._preset, levels={"default": level})), encoding="utf-8")
            yield from self._first("decode", "tvae", str(file), base)

    def _first(self, name: str, rival: str, preset: str, base: list[float]) -> Iterator[Row]:
        what = name.partition("-")[2]
        work = WORKS[what] if what in WORKS else Work("sdxl", "encode" if what == "encode" else "decode", (1024, 1024))
        tiny = self._options.tiny
        vae, config = ("builtin", None) if tiny else (None, work.config)
        size, frames = ((64, 64), None) if tiny else (work.size, work.frames)
        case = make_case(geometry_of("sdxl" if tiny else work.config, False), work.side, *size, 1, frames)
        subject = FirstUseModel(vae, config, preset, str(self._card.device), "bfloat16")
        request = {"rival": rival, "case": asdict(case), "subject": asdict(subject)}
        seconds = min(self._rows.left + 60, self._options.longest)
        with tempfile.TemporaryDirectory(dir=self._options.folder) as folder:
            apart, caches = Apart(self._card, self._options.here), caches_in(Path(folder))
            runs = [apart.run("first", request, seconds=seconds, env=caches).answer["seconds"] for _ in range(2)]
        row: Row = {"first": runs[0], "again": runs[1]}
        if rival == "diffusers":
            base.append(runs[0])
        elif base:
            row |= {"adds": runs[0] - base[0], "goal": ADDED}
            row["met"] = "yes" if row["adds"] <= ADDED else "no"
        yield row

    def _profile(self, what: str) -> Iterator[Row]:
        config, clip = {"wan": ("wan21", True), "hunyuan": ("hunyuan", True)}.get(what, ("sdxl", False))
        size = (832, 480, 17) if clip else (1024, 1024, None)
        if self._options.tiny:
            size = (32, 32, 5 if clip else None)
        request = {"config": config, "tiny": self._options.tiny, "size": size, "dtype": "bfloat16"}
        request |= {"side": "encode" if what == "encode" else "decode"}
        request |= {"device": self._options.device, "preset": self._options.preset}
        folder = tempfile.mkdtemp(dir=self._options.folder)
        names = {"XDG_CACHE_HOME": folder, "TRITON_CACHE_DIR": f"{folder}/triton"}
        apart = Apart(self._card, self._options.here)
        for caches in ("empty", "as left"):
            answer = apart.run("profile", request, seconds=self._options.longest, env=names).answer
            parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in answer["parts"].items())
            yield {**answer, "run": caches, "first": answer["first"], "note": f"{parts} s"}
            for line in answer["own"]:
                yield {"run": "", "note": line}


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """The rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = (*GROUPS, *WORKS, *OTHERS)
    parser.add_argument("names", nargs="+", choices=known, metavar="ROW")
    parser.add_argument("--repeat", type=int, default=9, help="warm calls, the median of which counts")
    parser.add_argument("--without", default="", help="rivals and levels to leave out, with commas")
    parser.add_argument("--no-reference", action="store_true", help="no errors")
    common(parser)
    options = parser.parse_args(arguments)
    options.without = tuple(options.without.split(","))
    fill_host(options)
    torch.set_grad_enabled(False)
    card = card_of(options.device)
    rows = Rows(COLUMNS, options.out, options.until, machine(card))
    speed = Speed(options, rows, card)
    for name in options.names:
        for one in GROUPS.get(name, (name,)):
            speed.measure(one)
    rows.end()
    return rows.rows


if __name__ == "__main__":
    main(sys.argv[1:])
