"""What recordings may take beside their plan. On a card: tests/gpu/test_recordings.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tvae.pipeline.session import kept_runs
from tvae.pipeline.session.kept_runs import RECORDED_MOST, RECORDED_ROOM, KeptRuns

MIB = 1 << 20


class Card:
    """In the place of a card: a recording takes ``pool`` bytes of it, and ``copied`` beside."""

    def __init__(self, pool: int, copied: int) -> None:
        self.pool, self.copied, self.kept, self.made = pool, copied, 0, 0

    def record(self, *_: Any) -> Any:
        self.made += 1
        self.kept += self.pool
        return SimpleNamespace(copied_bytes=self.copied)

    def segments(self, _: Any) -> list[dict[str, int]]:
        return [{"total_size": self.kept}]


@pytest.mark.parametrize(
    ("pool", "carried", "made", "fine"),
    [(1000, 40, 1, True), (1070, 40, 1, True), (1000, 200, 0, False), (1200, 20, 1, False), (1095, 40, 1, False)],
)
def test_a_recording_takes_what_was_planned_or_is_not_made(
    pool: int, carried: int, made: int, fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that is planned to take 1000 MiB: 1112 at most. Copies that are too large are known before."""
    card = Card(pool * MIB, carried * MIB)
    for name, value in {
        "Recording": card.record,
        "RecordingPool": lambda _: None,
        "recorded_segments": card.segments,
    }.items():
        monkeypatch.setattr(kept_runs, name, value)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (100 << 30, 100 << 30))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    runs = KeptRuns(torch.device("cuda", 0))
    assert (pool + carried) * MIB <= RECORDED_MOST * 1000 * MIB + RECORDED_ROOM or not fine
    if fine:
        assert runs.record(lambda _: [], [], 1000 * MIB, carried * MIB).copied_bytes == carried * MIB
    else:
        with pytest.raises(RuntimeError, match="1000 were planned"):
            runs.record(lambda _: [], [], 1000 * MIB, carried * MIB)
    assert card.made == made
