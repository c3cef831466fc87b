"""Finds a preset's values by measuring: levels on single calls, everything else on whole decodes."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tvae.kernels import LEVELS, OPERATIONS
from tvae.pipeline.bench.kernels import Ceiling, KernelRow, bench_kernels, default_size
from tvae.pipeline.bench.timing import call_seconds, free_memory, is_out_of_memory
from tvae.pipeline.bench.vae import cast, geometry, input_of, make_case
from tvae.pipeline.errors import TvaeError
from tvae.pipeline.session.runner import RECORDED_AT
from tvae.pipeline.tiled_vae import TiledVAE
from tvae.presets import Preset
from tvae.presets.text import text_of

__all__ = ["Trial", "Tuner"]

_SAME = 1.03
"""Times this close are the same: then the simpler level or the lower strip is taken."""

_STRIPS = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Trial:
    """One value of one setting that was tried; seconds is None where it failed, and the note says why."""

    setting: str
    value: str
    seconds: float | None
    chosen: bool
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


class Tuner:
    """Iterate for the trials; afterwards ``preset`` is the base with the best of each.

    model: moved to the device and cast to the base preset's type. machine, vae: their names, for the notes. size: side
    of the decoded picture in pixels. quick: fewer candidates, fewer calls, checks of the measured calls only.
    """

    def __init__(
        self, base: Preset, model: nn.Module, device: torch.device, *, machine: str, vae: str, size: int, quick: bool
    ) -> None:
        self.preset = dataclasses.replace(base, measured={})
        self._device, self._quick, self._machine = device, quick, machine
        dtype: torch.dtype = getattr(torch, base.dtype)
        self._dtype, self._model = dtype, cast(model, device, dtype)
        known = geometry(self._model)
        frames = None if known.temporal is None else known.lead + known.temporal
        case = make_case(known, "decode", size, size, 1, frames)
        self._input = input_of(case, known).to(device, dtype)
        self._rows = size // known.spatial
        shape = f"{size}x{size}" if frames is None else f"{size}x{size}x{frames}"
        self._basis = f"{machine}, {vae}, decode {shape} in {base.dtype}"

    def __iter__(self) -> Iterator[Trial]:
        levels = yield from self._levels()
        native = {"default": "native"}
        variants: dict[str, dict[str, Any]] = {}
        for layout in ("contiguous", "channels_last"):
            for given in (native, levels) if levels != native else (native,):
                name = f"{layout}, {'native kernels' if given == native else 'the levels above'}"
                variants[name] = {"memory_layout": layout, "levels": given}
        yield from self._choose("memory_layout", variants)
        heights = [rows for rows in _STRIPS if rows < 2 * self._rows][-2 if self._quick else 0 :] or [_STRIPS[0]]
        yield from self._choose("strip_rows", {str(rows): {"strip_rows": rows} for rows in heights})
        if self._device.type == "cuda":
            without = "steps" if self.preset.cudnn_benchmark is True else self.preset.cudnn_benchmark
            for key, off in (("cudnn_benchmark", without), ("cuda_graphs", False)):
                yield from self._choose(key, {"off": {key: off}, "on": {key: True}})

    def _levels(self) -> Generator[Trial, None, dict[str, str]]:
        """The fastest level of each operation that gives right results; returned as a preset's table."""
        # compiling takes minutes in all
        candidates = [level for level in LEVELS if not self._quick or level not in ("compile", "script")]
        size = default_size(self._device) // (4 if self._quick else 1)
        found: dict[str, list[KernelRow]] = {name: [] for name in OPERATIONS}
        for row in bench_kernels(
            self.preset,
            self._device,
            self._dtype,
            size=size,
            levels=candidates,
            repeat=3 if self._quick else 10,
            quick=self._quick,
        ):
            if isinstance(row, Ceiling) or row.status == "missing":
                continue
            found[row.operation].append(row)
        best: dict[str, str] = {}
        told: list[str] = []
        for name, rows in found.items():
            times = {row.level: row.seconds for row in rows if row.status == "ok" and row.seconds is not None}
            best[name] = _first_of_the_fastest(times) if times else "native"
            told.append(f"{name} {', '.join(f'{1e6 * seconds:.1f} µs {level}' for level, seconds in times.items())}")
            for row in rows:
                note = "" if row.status == "ok" else f"{row.status}: {row.reason or 'beyond its tolerance'}"
                yield Trial(f"levels.{name}", row.level, row.seconds, row.level == best[name], note)
        self._told = f"{self._machine}, {size}x{size}, 128 channels, {self.preset.dtype}: {'; '.join(told)}"
        return _table(best)

    def _choose(self, setting: str, variants: Mapping[str, Mapping[str, Any]]) -> Iterator[Trial]:
        """Times a decode with each variant, simplest first, and takes the best into the preset."""
        times: dict[str, float] = {}
        notes: dict[str, str] = {}
        for name, values in variants.items():
            seconds, notes[name] = self._decode(dataclasses.replace(self.preset, **values))
            if seconds is not None:
                times[name] = seconds
        best = _first_of_the_fastest(times) if times else None
        if best is not None:
            told = "; ".join(f"{1e3 * seconds:.1f} ms {name}" for name, seconds in times.items())
            measured = {**self.preset.measured, setting: f"{self._basis}: {told}"}
            if setting == "memory_layout":
                measured["levels"] = self._told
            self.preset = dataclasses.replace(self.preset, **variants[best], measured=measured)
        for name in variants:
            yield Trial(setting, name, times.get(name), name == best, notes[name])

    def _decode(self, preset: Preset) -> tuple[float | None, str]:
        """Median seconds of a warm decode, or why there is none."""
        repeat = 2 if self._quick else 5
        with tempfile.TemporaryDirectory(prefix="tvae-tune-") as folder:
            path = Path(folder) / "candidate.toml"
            path.write_text(text_of(preset), encoding="utf-8")
            try:
                tiled = TiledVAE(self._model, str(path))
                with torch.no_grad():
                    for _ in range(RECORDED_AT):  # the last of them records
                        self._result(tiled)
                    return statistics.median(self._seconds(tiled) for _ in range(repeat)), ""
            except (TvaeError, RuntimeError) as error:
                lines = str(error).strip().splitlines() or [type(error).__name__]
                return None, "out of memory" if is_out_of_memory(error) else lines[0]
            finally:
                tiled = None  # type: ignore[assignment]
                free_memory(self._device)

    def _seconds(self, tiled: TiledVAE) -> float:
        return call_seconds(lambda: self._result(tiled), self._device)

    def _result(self, tiled: TiledVAE) -> Tensor:
        found: Tensor = tiled.decode(self._input, return_dict=False)[0]
        return found


def _first_of_the_fastest(times: Mapping[str, float]) -> str:
    """The first within measuring error of the fastest."""
    limit = _SAME * min(times.values())
    return next(name for name, seconds in times.items() if seconds <= limit)


def _table(best: Mapping[str, str]) -> dict[str, str]:
    """A preset's levels: the commonest as ``default``, the others by name."""
    default = Counter(best.values()).most_common(1)[0][0]
    return {"default": default, **{name: level for name, level in best.items() if level != default}}
