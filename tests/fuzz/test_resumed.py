"""Damage to what an interrupted run keeps: the next run's result is that of an undisturbed one."""

from __future__ import annotations

import os
import random
import shutil
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from clips import write_clip
from mutations import damaged_bytes
from stand_in import StandIn

from tvae.pipeline.jobs import Event, ItemFailed, Job, Progress, checkpoint, run_job

SEEDS = [pytest.param(range(3), id="short"), pytest.param(range(100, 300), id="long", marks=pytest.mark.slow)]


def work(operation: Any, source: Path, out: Path, until: int | None = None) -> list[str]:
    """Why items failed. until: of so many frames, the run is interrupted."""
    events: list[Event] = []

    def seen(event: Event) -> None:
        events.append(event)
        if until is not None and isinstance(event, Progress) and event.done >= until:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        run_job(Job(operation, (str(source),), output=str(out)), seen, model=StandIn())  # type: ignore[arg-type]
    return [event.error for event in events if isinstance(event, ItemFailed)]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long
@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("operation", ["encode", "decode"])
def test_what_an_interrupted_run_keeps(
    operation: str, seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SHARE", 1e9)
    write_clip(tmp_path / "clip.mkv", 300, sound=True)
    source = tmp_path / "clip.mkv"
    if operation == "decode":
        assert work("encode", source, tmp_path / "latents") == []
        source = tmp_path / "latents"
    assert work(operation, source, tmp_path / "whole") == []
    whole = content(tmp_path / "whole")
    work(operation, source, tmp_path / "kept", until=290)
    files = sorted(name for name in content(tmp_path / "kept") if not name.endswith(".lock"))
    assert len(files) >= 3, "nothing is kept"
    for seed in seeds:
        rng, out = random.Random(seed), tmp_path / "out"
        shutil.copytree(tmp_path / "kept", out)
        for _ in range(rng.choice((1, 1, 3))):
            victim, kind = out / rng.choice(files), rng.random()
            if kind < 0.8 and victim.exists():
                victim.write_bytes(damaged_bytes(victim.read_bytes(), rng))
            elif kind < 0.9:
                victim.unlink(missing_ok=True)
            else:  # a whole file in the place of another
                shutil.copyfile(tmp_path / "kept" / rng.choice(files), victim)
        assert work(operation, source, out) == [], seed
        assert content(out) == whole, seed
        shutil.rmtree(out)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs fifos")
def test_a_fifo_in_the_place_of_a_checkpoint(tmp_path: Path) -> None:
    """Nothing waits for what it brings."""
    os.mkfifo(tmp_path / "state.safetensors")
    found: list[object] = []
    kept = checkpoint.Checkpoints(tmp_path / "state.safetensors", "f" * 64)
    thread = Thread(target=lambda: found.append(kept.read()), daemon=True)
    thread.start()
    thread.join(10)
    assert found == [None]
