"""Files that an older tvae made wrong, by the revision of their architecture, are made again; others stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_vaes import saved
from PIL import Image

from tvae.pipeline.caches import Buckets, CacheRequest
from tvae.pipeline.caches.trainers import TRAINERS
from tvae.pipeline.jobs import Event, ItemDone, ItemSkipped, Job, run_job


@pytest.mark.long
def test_files_of_an_older_revision_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = saved("sdxl", tmp_path / "vae")
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    job = Job(
        "cache",
        (str(tmp_path / "a.png"),),
        output=str(tmp_path / "out"),
        vae=str(model.folder),
        size=(64, 64),
        cache=CacheRequest("kohya", "sdxl", buckets=Buckets(True, 32, 128, 32)),
    )

    def run() -> list[type[Event]]:
        events: list[Event] = []
        run_job(job, events.append)
        return [type(event) for event in events if isinstance(event, ItemDone | ItemSkipped)]

    def revised(number: int) -> None:
        kohya = TRAINERS["kohya"]
        made = [replace(one, revision=number) for one in kohya.architectures]
        monkeypatch.setitem(TRAINERS, "kohya", replace(kohya, architectures=tuple(made)))

    assert run() == [ItemDone]
    assert run() == [ItemSkipped]
    revised(1)
    assert run() == [ItemDone]
    assert run() == [ItemSkipped]
    revised(2)
    assert run() == [ItemDone]
