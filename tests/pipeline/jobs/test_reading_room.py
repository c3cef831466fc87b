"""What is read counts against the budget of a run on a CPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
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


@pytest.mark.parametrize("operation", ["encode", "roundtrip"])
def test_a_picture_that_is_to_be_made_too_large_costs_its_item(
    operation: str, run: Run, picture: Run, tmp_path: Path
) -> None:
    """It was made so, and then refused by its plan, or the process ended for want of memory."""
    how: dict[str, Any] = {"size": (60000, 60000), "device": "cpu", "vram": "1GiB"}
    done, events = run(operation, picture(), output=tmp_path / "out", **how)
    assert (done.done, done.failed) == (0, 1)
    (failed,) = [event for event in events if isinstance(event, ItemFailed)]
    assert re.search(r"scaling it to 60000x\d+ pixels takes \d+ MiB, and \d+ MiB are free; .*--size", failed.error)
