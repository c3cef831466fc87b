"""What the tuner takes from its measurements."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from tiny_vaes import TINY

from tvae import presets
from tvae.kernels import OPERATIONS
from tvae.pipeline.bench import tune
from tvae.pipeline.bench.kernels import Ceiling, KernelRow
from tvae.pipeline.bench.tune import Trial, Tuner
from tvae.presets import Preset

CPU = torch.device("cpu")


def tuned(
    monkeypatch: pytest.MonkeyPatch, rows: list[KernelRow], decode: Any, **options: Any
) -> tuple[Preset, list[Trial]]:
    """Preset and trials when single calls gave these rows and decodes take what ``decode`` says of a preset."""
    monkeypatch.setattr(tune, "bench_kernels", lambda *a, **k: iter([Ceiling("copy", 1e9), *rows]))
    monkeypatch.setattr(Tuner, "_decode", lambda self, preset: decode(preset))
    base = dataclasses.replace(presets.load("cpu"), measured={"dtype": "of another machine"})
    model = TINY["AutoencoderKL"].build()
    tuner = Tuner(base, model, CPU, machine="a machine", vae="a VAE", **{"size": 512, "quick": False, **options})
    trials = list(tuner)
    return tuner.preset, trials


def row(operation: str, level: str, seconds: float | None, status: Any = "ok") -> KernelRow:
    return KernelRow(operation, level, status, seconds=seconds)


def test_the_fastest_right_level_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(name, "native", 1e-3) for name in OPERATIONS] + [row(name, "triton", 1e-4) for name in OPERATIONS]
    rows += [
        row("norm_act", "cuda", 5e-5),
        row("add_stats", "cuda", 1e-6, "wrong"),
        row("group_stats", "cuda", None, "refused"),
        row("sample", "script", 0.99e-4),  # within measuring error of triton, and simpler
        row("rms_norm_act", "compile", None, "missing"),
    ]
    rows.sort(key=lambda r: ("native", "script", "compile", "triton", "cuda").index(r.level))
    preset, trials = tuned(monkeypatch, rows, lambda preset: (1.0 if preset.levels["default"] == "native" else 0.5, ""))
    assert preset.levels == {"default": "triton", "norm_act": "cuda", "sample": "script"}
    assert "norm_act 1000.0 µs native, 100.0 µs triton, 50.0 µs cuda" in preset.measured["levels"]
    assert "dtype" not in preset.measured
    (wrong,) = (t for t in trials if t.setting == "levels.add_stats" and t.value == "cuda")
    assert (wrong.chosen, wrong.note) == (False, "wrong: beyond its tolerance")


def test_levels_that_do_not_pay_in_a_decode_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row("norm_act", "native", 1e-3), row("norm_act", "triton", 1e-4)]
    preset, _ = tuned(monkeypatch, rows, lambda preset: (1.0 + 0.2 * ("norm_act" in preset.levels), ""))
    assert preset.levels == {"default": "native"}
    assert preset.memory_layout == "contiguous"


def test_the_lowest_strip_that_is_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {16: 2.0, 32: 1.02, 64: 1.0, 128: 1.01, 256: 1.3}
    preset, trials = tuned(monkeypatch, [], lambda preset: (times[preset.strip_rows], ""))
    assert preset.strip_rows == 32
    assert [t.value for t in trials if t.setting == "strip_rows"] == ["16", "32", "64", "128"]  # of 128 latent rows
    assert preset.measured["strip_rows"].startswith("a machine, a VAE, decode 512x512 in float32: 2000.0 ms 16; 1020.0")


def test_what_fails_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(preset: Preset) -> tuple[float | None, str]:
        return (None, "out of memory") if preset.strip_rows > 32 else (1.0 - preset.strip_rows / 100, "")

    preset, trials = tuned(monkeypatch, [], decode)
    assert preset.strip_rows == 32
    assert [t.note for t in trials if t.value == "64"] == ["out of memory"]
    preset, _ = tuned(monkeypatch, [], lambda preset: (None, "out of memory"))
    assert preset.strip_rows == presets.load("cpu").strip_rows
    assert preset.measured == {}


def test_a_decode_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Breaks:
        def __init__(self, *arguments: Any) -> None: ...

        def decode(self, *arguments: Any, **options: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory")

    tuner = Tuner(presets.load("cpu"), TINY["AutoencoderKL"].build(), CPU, machine="m", vae="v", size=32, quick=True)
    monkeypatch.setattr(tune, "TiledVAE", Breaks)
    assert tuner._decode(presets.load("cpu")) == (None, "out of memory")
