"""How busy the stages of a run are, and which one is the limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tvae.pipeline.jobs import RunDone
from tvae.pipeline.jobs.busy import Busy, bottleneck

Run = Callable[..., Any]

SLOW = {
    "read": "tvae.pipeline.jobs.reading.prepare",
    "compute": "tvae.pipeline.jobs.compute.levels_to_device",
    "write": "tvae.pipeline.latents.image_file.write_tensors",
}


@pytest.mark.parametrize("stage", SLOW)
def test_the_slow_stage_is_the_bottleneck(
    stage: str, run: Run, picture: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import import_module

    module, _, name = SLOW[stage].rpartition(".")
    before = getattr(import_module(module), name)

    def slow(*args: Any) -> Any:
        time.sleep(0.02 if stage == "compute" else 0.1)
        return before(*args)

    monkeypatch.setattr(SLOW[stage], slow)
    sources = [picture(f"in/{n}.png", seed=n) for n in range(32)]
    done, _ = run("encode", *sources, output=tmp_path / "out", batch=1)
    assert isinstance(done, RunDone)
    assert max(done.stages, key=lambda name: done.stages[name]) == stage
    assert 0.6 < done.stages[stage] <= 1
    assert done.to_json()["stages"] == done.stages


def test_what_is_said_of_it() -> None:
    busy = Busy(4)
    busy.add("read", 4.0)
    busy.add("compute", 9.5)
    shares = busy.shares(10.0)
    assert shares == {"read": 0.1, "compute": 0.95, "write": 0.0}
    assert bottleneck(shares) == "bottleneck: computing (busy: reading 10 %, computing 95 %, writing 0 %)"
    assert bottleneck({**shares, "compute": 0.3}).startswith("bottleneck: none of the stages")


def test_without_threads_there_is_none(run: Run, picture: Run, tmp_path: Path) -> None:
    done, _ = run("encode", picture(), output=tmp_path / "out")
    assert done.stages is not None
    skipped, _ = run("encode", picture(), output=tmp_path / "out", existing="keep", dry_run=True)
    assert skipped.stages is None
