"""Ranks that there are not: to plan as one of them, in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvae.pipeline.session.choose_plan import Room
from tvae.pipeline.session.peers import Peers

__all__ = ["PlannedPeers"]


class PlannedPeers(Peers):
    """``count`` ranks that are all like this one, and give the whole result to each. They run nothing."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count, self.gather, self.must_share = rank, count, True, False

    def least(self, found: Callable[[], Room]) -> Room:
        """What this rank finds."""
        return found()

    def meet(self, count: int) -> None:
        """They compute nothing."""

    def check_alike(self, facts: Sequence[tuple[str, object]]) -> None:
        """They are."""
