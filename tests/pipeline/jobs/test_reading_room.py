"""What is read counts against the budget of a run on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from tvae.pipeline.jobs import ItemFailed

Run = Callable[..., Any]


def test_a_picture_that_exceeds_the_budget_costs_its_item(run: Run, picture: Run, tmp_path: Path) -> None:
    """It was read whole, and then made small."""
    large = tmp_path / "large.png"
    Image.new("1", (16000, 16000)).save(large)
    done, events = run("encode", large, picture(), output=tmp_path / "out", size=(64, 64), device="cpu", vram="1536MiB")
    assert (done.done, done.failed) == (1, 1)
    (failed,) = [event for event in events if isinstance(event, ItemFailed)]
    assert "reading 16000x16000 pixels takes 2441 MiB, and" in failed.error
    assert "--vram" in failed.error
