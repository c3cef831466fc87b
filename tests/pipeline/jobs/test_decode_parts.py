"""Where parts of a decoded clip end, and that a checkpoint is kept once its part is complete."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tvae.pipeline.jobs.checkpoint import Checkpoint, Checkpoints
from tvae.pipeline.jobs.decode_parts import PART_FRAMES, DecodeParts


@pytest.mark.parametrize("beside", [False, True])
def test_the_end_of_a_part(tmp_path: Path, beside: bool) -> None:
    state, told, waiting = tmp_path / "state", list[bool](), list[Any]()

    def end_part(then: Any = None, *, beside: bool) -> None:
        told.append(beside)
        waiting.append(then)

    writer = SimpleNamespace(state_path=state, end_part=end_part)
    parts = DecodeParts(cast(Any, writer), "f" * 64, None, beside=beside)
    assert parts.reached(PART_FRAMES - 1, 1) is None
    first = parts.reached(PART_FRAMES, 2)
    assert first is not None
    first()
    assert not state.exists(), "the part is not complete yet"
    waiting[0]()
    found = Checkpoints(state, "f" * 64).read()
    assert found is not None
    assert (found.parts, found.frames, found.chunks) == (1, PART_FRAMES, 2)
    parts._checkpoints._took = float("inf")  # it is too early for another
    second = parts.reached(2 * PART_FRAMES, 3)
    assert second is not None
    second()
    assert waiting[1] is None
    assert told == [beside] * 2


def test_parts_are_counted_from_where_a_run_goes_on(tmp_path: Path) -> None:
    state = tmp_path / "state"
    Checkpoints(state, "f" * 64).write(Checkpoint(1, PART_FRAMES, 33))
    writer = SimpleNamespace(state_path=state, adopt=lambda parts: parts == 1, end_part=lambda then, beside: then())
    parts = DecodeParts(cast(Any, writer), "f" * 64, None)
    start = parts.begin()
    assert (start.parts, start.frames, start.chunks) == (1, PART_FRAMES, 33)
    ends = parts.counted(start)
    assert ends(PART_FRAMES - 1) is None
    end = ends(2)
    assert end is not None
    end()
    assert ends(PART_FRAMES - 1) is None
    found = Checkpoints(state, "f" * 64).read()
    assert found is not None
    assert (found.parts, found.frames, found.chunks) == (2, 2 * PART_FRAMES + 1, 35)
