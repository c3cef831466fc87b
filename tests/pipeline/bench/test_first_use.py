"""First results in processes of their own: what they find on disk, and what becomes of one that fails."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_vaes import TINY
from torch import nn

from tvae import presets
from tvae.pipeline.bench import first_use as module
from tvae.pipeline.bench.first_use import FirstUse, FirstUseModel, first_use
from tvae.pipeline.bench.vae import VaeCase, bench_vae
from tvae.presets.text import text_of

CASE = VaeCase("decode", 32, 16, 2)
SUBJECT = FirstUseModel("builtin", None, "cpu", "cpu", "float32", 4)


@pytest.fixture(scope="module")
def image() -> nn.Module:
    return TINY["AutoencoderKL"].build()


def ended(code: int, out: str = "", err: str = "") -> Any:
    return subprocess.CompletedProcess([], code, out, err)


def test_the_second_process_finds_what_the_first_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the first finds nothing, wherever anybody's caches are."""
    seen: list[dict[str, list[str]]] = []

    def run(command: list[str], *, input: str, env: dict[str, str], **_options: Any) -> Any:
        assert command == [sys.executable, "-m", "tvae.pipeline.bench.first_use"]
        assert json.loads(input)["rival"] == "tvae"
        assert "HF_HOME" in env
        seen.append({name: [p.name for p in Path(env[name]).iterdir()] for name in module._CACHES})
        for name in module._CACHES:
            (Path(env[name]) / name).touch()
        return ended(0, f'a line of somebody else\n{{"seconds": {len(seen)}.5}}\n')

    monkeypatch.setattr(module.subprocess, "run", run)
    assert first_use("tvae", CASE, SUBJECT) == FirstUse(1.5, 2.5)
    assert not any(seen[0].values())
    assert all(name in seen[1][name] for name in module._CACHES)


@pytest.mark.long
def test_one_that_fails_is_told_by_its_last_line(monkeypatch: pytest.MonkeyPatch, image: nn.Module) -> None:
    monkeypatch.setattr(
        module.subprocess, "run", lambda *_, **__: ended(1, err="Traceback\nValueError: no such thing\n")
    )
    with pytest.raises(RuntimeError, match=r"^ValueError: no such thing$"):
        first_use("tvae", CASE, SUBJECT)
    options: Any = {"reference": None, "repeat": 1, "subject": SUBJECT}
    cpu = torch.device("cpu")
    (row,) = bench_vae(image, [CASE], ["tvae"], presets.load("cpu"), cpu, torch.float32, **options)
    assert (row.status, row.first_use_seconds) == ("ok", None)
    assert row.reason == "first use: ValueError: no such thing"


def test_one_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **options: Any) -> Any:
        raise subprocess.TimeoutExpired([], options["timeout"])

    monkeypatch.setattr(module.subprocess, "run", run)
    with pytest.raises(RuntimeError, match="no first result within 3 s"):
        first_use("tvae", CASE, SUBJECT, seconds=3)


@pytest.mark.long
@pytest.mark.parametrize("rival", ["tvae", "diffusers"])
def test_what_such_a_process_does(rival: str) -> None:
    case = {"side": "encode", "width": 32, "height": 32, "batch": 1, "frames": None}
    subject = {"vae": "builtin", "config": None, "preset": "cpu", "device": "cpu", "dtype": "float32", "strip": None}
    assert module.first_seconds(rival, case, subject) > 0


def test_a_rival_runs_as_its_own_call_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that the preset wants would count as theirs."""
    from tvae.pipeline.bench import rivals

    file, seen, real = tmp_path / "mine.toml", list[bool](), rivals.call_reference
    file.write_text(text_of(dataclasses.replace(presets.load("cpu"), cudnn_benchmark=True)), encoding="utf-8")

    def call(*args: Any) -> Any:
        seen.append(torch.backends.cudnn.benchmark)
        return real(*args)

    monkeypatch.setattr(rivals, "call_reference", call)
    case = {"side": "encode", "width": 32, "height": 32, "batch": 1, "frames": None}
    subject = {"vae": "builtin", "config": None, "preset": str(file), "device": "cpu", "dtype": "bfloat16"}
    module.first_seconds("diffusers", case, subject)
    assert seen == [False]


@pytest.mark.slow
def test_graphs_are_captured_once(image: Any, tmp_path: Path) -> None:
    image.save_pretrained(tmp_path)
    subject = FirstUseModel(str(tmp_path), None, "cpu", "cpu", "float32")
    found = first_use("tvae", CASE, subject)
    assert 0 < found.again < found.empty
