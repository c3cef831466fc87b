"""What a disk that fills up, and what is logged, looks like on the command line."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import ShortFiles
from PIL import Image
from program import invoke
from typer.testing import Result

from tvae import presets
from tvae.cli.exit_codes import Terminated, code_for
from tvae.cli.render import Display
from tvae.pipeline import errors
from tvae.pipeline.jobs import Event

Tvae = Callable[..., Result]


@pytest.mark.skipif(os.name == "nt", reason="needs limits of processes")
@pytest.mark.parametrize("operation", ["encode", "decode", "roundtrip"])
@pytest.mark.parametrize("items", [1, 3])
def test_no_room_for_one_of_them(
    operation: str, items: int, tvae: Tvae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    sources = [tmp_path / f"{number}.png" for number in range(items)]
    for source in sources:
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(source)
    if operation == "decode":
        assert tvae("encode", *sources, "-o", tmp_path / "latents").exit_code == 0
        sources = [tmp_path / "latents" / f"{source.name}.safetensors" for source in sources]
    victim = sources[items // 2]
    fault, show = ShortFiles(victim, 100), Display.show
    one_by_one = tmp_path / "own.toml"
    text = presets.export("cpu")
    one_by_one.write_text(re.sub(r"^io_workers = .*$", "io_workers = 0", text, flags=re.MULTILINE), "utf-8")

    def shown(self: Display, event: Event) -> None:
        show(self, event)
        fault(event)

    monkeypatch.setattr(Display, "show", shown)
    try:
        result = tvae(operation, *sources, "-o", tmp_path / "out", "--no-progress", "--preset", one_by_one)
    finally:
        fault.heal()
    assert result.exit_code == 3, result.stderr
    assert sum(" -> " in line for line in result.stdout.splitlines()) == items - 1
    (complaint,) = (line for line in result.stderr.splitlines() if "error" in line)
    assert "cannot write" in complaint
    assert str(items // 2) in complaint
    assert len(list((tmp_path / "out").iterdir())) == items - 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InputError("x"), 3),
        (errors.OutputError("x"), 3),
        (errors.UsageError("x"), 2),
        (errors.PlanError("x"), 2),
        (errors.UnsupportedOp("x", "y"), 2),
        (OSError("x"), 1),
        (KeyError("x"), 1),
        (KeyboardInterrupt(), 130),
        (Terminated(), 143),
    ],
)
def test_codes(error: BaseException, code: int) -> None:
    assert code_for(error) == code


@pytest.mark.parametrize(("signal", "code"), [(KeyboardInterrupt, 130), (Terminated, 143), (OSError, 1)])
def test_a_signal_while_a_class_is_made(signal: type[BaseException], code: int) -> None:
    """As when a module is imported. Python 3.11 raises a RuntimeError from it."""

    class Named:
        def __set_name__(self, owner: type, name: str) -> None:
            raise signal

    with pytest.raises((RuntimeError, signal)) as raised:
        type("Owner", (), {"name": Named()})
    assert code_for(raised.value) == code


def test_logs_are_shown_with_v_alone(tvae: Tvae, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = logging.getLogger("tvae")

    def told(*args: Any, **more: Any) -> Any:
        log.debug("a level is not %s", "there")
        return run_job(*args, **more)

    from tvae.pipeline.jobs import run_job

    monkeypatch.setattr("tvae.cli.work.run_job", told)
    before = log.level, list(log.handlers)
    for flag, lines in ((), 0), (("-v",), 1):
        result = tvae("encode", photo, "-o", tmp_path / "out", "--overwrite", *flag)
        assert result.exit_code == 0
        assert result.stderr.count("tvae: DEBUG: a level is not there\n") == lines
        assert (log.level, list(log.handlers)) == before


@pytest.mark.parametrize("name", ["meta", "privateuseone", "mps:7", "fpga", "nosuch"])
def test_a_device_that_cannot_compute_is_refused(name: str, tmp_path: Path) -> None:
    """In one line of ours, before any work."""
    source = tmp_path / "p.png"
    Image.new("RGB", (16, 16)).save(source)
    for command in (["encode", source, "-o", tmp_path / "out"], ["plan", "--shape", "16x16"]):
        result = invoke([*map(str, command), "--device", name])
        assert result.exit_code == 2, result.output
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"tvae: device '{name}' cannot be used here: ")
        assert "report" not in line
        assert len(line) < 300
    assert not (tmp_path / "out").exists()
