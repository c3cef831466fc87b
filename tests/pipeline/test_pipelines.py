"""``pipe.vae = TiledVAE(pipe.vae)``: diffusers' own pipelines give the clip that they give without it."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from script import script_of
from tiny_pipelines import PIPELINES, clip_of
from tiny_vaes import TINY, relative_l2

from tvae.pipeline import TiledVAE
from tvae.pipeline.models.reference import reference_mode


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("wan", (1,)),
        pytest.param("hunyuan", (5,), marks=pytest.mark.slow),
        ("cogvideox", (9,)),
        pytest.param("ltx", (9,), marks=pytest.mark.slow),
        *[
            pytest.param(name, lengths, marks=pytest.mark.slow)
            for name, lengths in (("wan", (5, 13)), ("hunyuan", (9, 21)), ("cogvideox", (9, 17)), ("ltx", (9, 25)))
        ],
    ],
)
def test_one_line_is_all_it_takes(name: str, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole call, with random transformers; and again with another length and size, by the same object.

    HunyuanVideo's own call blends pieces of clips of more than 16 frames: not so where it is the reference.
    """
    pipeline, call = PIPELINES[name]()
    own, calls = pipeline.vae, []
    sizes = [(length, *((32, 64), (64, 32))[n]) for n, length in enumerate(lengths)]
    with reference_mode(own):
        plain = [clip_of(pipeline, call, *size) for size in sizes]
    pipeline.vae = TiledVAE(own, strip=2)
    decode = TiledVAE.decode

    def noted(self: TiledVAE, z: torch.Tensor, *args: Any, **options: Any) -> Any:
        calls.append(z.shape)
        return decode(self, z, *args, **options)

    monkeypatch.setattr(TiledVAE, "decode", noted)
    for size, clip in zip(sizes, plain, strict=True):
        assert clip.std() > 1e-3
        assert relative_l2(clip_of(pipeline, call, *size), clip) <= 1e-5
    assert len(set(calls)) == len(lengths)
    assert pipeline.components["vae"] is pipeline.vae
    assert pipeline.to(torch.float64).vae.dtype == own.dtype == torch.float64


@pytest.mark.parametrize("name", ["wan", "ltx"])
def test_a_pipeline_is_saved_with_the_models_own_weights(name: str, tmp_path: Path) -> None:
    """diffusers saves what is of a class that it knows, and wrote ``"vae": [null, null]``, which it does not load."""
    pipeline, _ = PIPELINES[name]()
    own = pipeline.vae
    pipeline.vae = TiledVAE(own)
    pipeline.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "model_index.json").read_text())["vae"] == ["diffusers", type(own).__name__]
    loaded = type(own).from_pretrained(tmp_path / "vae").state_dict()
    assert loaded.keys() == own.state_dict().keys()
    assert all(torch.equal(value, loaded[key]) for key, value in own.state_dict().items())


def test_it_passes_for_the_model_and_is_itself() -> None:
    own = TINY["AutoencoderKL"].build()
    tiled = TiledVAE(own, strip=2)
    assert isinstance(tiled, type(own))
    assert isinstance(tiled, TiledVAE)
    assert repr(tiled).startswith("TiledVAE(")
    for copied in (copy.copy(tiled), copy.deepcopy(tiled), pickle.loads(pickle.dumps(tiled))):
        assert type(copied) is TiledVAE
        assert isinstance(copied, type(own))
        assert copied.state_dict().keys() == own.state_dict().keys()
    z = torch.randn(1, 4, 8, 8)
    with torch.no_grad():
        assert relative_l2(TiledVAE(tiled, strip=3).decode(z).sample, own.decode(z).sample) <= 1e-5  # type: ignore[operator]


# -- the script that measures them on a GPU ----------------------------------------------------------------------------
@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_of("pipelines")


@pytest.mark.slow
def test_the_script_measures_all_of_them(script: ModuleType, tmp_path: Path) -> None:
    """In a process of its own: what this one holds after many tests counts against the budget of a row. Its exit code
    says whether times are as they should be, which tiny models cannot tell."""
    out, command = tmp_path / "rows.jsonl", [sys.executable, str(script.__file__), *script.ROWS, "--device", "cpu"]
    path = os.pathsep.join([str(Path(__file__).parents[1] / "helpers"), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": path}
    subprocess.run([*command, "--warm", "1", "--out", str(out)], env=environment, timeout=600)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["row"] for row in rows] == [*script.ROWS]
    for row in rows:
        assert min(row[key] for key in ("own", "first", "warm", "second_first", "second_warm", "held")) > 0


def test_captures_are_counted(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With graphs of its own on disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tiny = TINY["AutoencoderTiny"]
    tiled = TiledVAE(tiny.build(seed=77), strip=2)
    for expected in (1, 0):
        with script.captures() as found:
            tiled.decode(tiny.input("decode", 8 + expected, 6))
        assert len(found) == expected


def test_goals_are_held_to(script: ModuleType) -> None:
    wan, hunyuan = script.ROWS["wan"], script.ROWS["hunyuan"]
    fine = {"peak": 8 << 30, "held": 24 << 30, "own": 4.0, "warm": 2.0, "captures": 0}
    fine |= {"second_first": 1.5, "second_warm": 1.0}
    assert [*script.goals(wan, fine), *script.goals(hunyuan, fine)] == []
    assert [*script.goals(wan, {**fine, "own": None})] == []
    for row, change, told in (
        (wan, {"peak": (8 << 30) + 1}, "a peak of 8.00 GiB"),
        (wan, {"warm": 2.1}, "1.90 times diffusers' speed"),
        (hunyuan, {"held": (24 << 30) + 1}, "held 24.00 GiB of 24GiB"),
        (wan, {"captures": 2}, "2 captures"),
        (hunyuan, {"second_first": 1.6}, "takes 1.60 warm ones"),
    ):
        (missed,) = script.goals(row, {**fine, **change})
        assert told in missed
