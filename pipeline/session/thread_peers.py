"""Ranks that are threads of this process, of which the first has the inputs and wants the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvae.pipeline.engine.run.exchange import Exchange
from tvae.pipeline.engine.run.thread_exchange import Meeting, ThreadExchange
from tvae.pipeline.errors import TvaeError
from tvae.pipeline.session.choose_plan import Room
from tvae.pipeline.session.failed_call import FailedCall
from tvae.pipeline.session.peers import Peers
from tvae.pipeline.session.words import Words

__all__ = ["ThreadPeers"]


class ThreadPeers(Peers):
    """As the thread of number ``rank`` sees them. What one of them raises ends the call in all (see ``Meeting``)."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.gather, self.must_share, self.first_only = True, False, True
        self.rank, self.count, self._meeting = rank, meeting.ranks, meeting
        self._all = ThreadExchange(meeting, rank, self.count)
        self._fewer = {self.count: self._all}
        self._words = Words(None, self._all, on_host=True)
        self.failed = FailedCall(self._words, told_at_end=False)

    def meet(self, count: int) -> None:
        """See ``Peers``: threads need no group."""

    def exchange(self, count: int) -> Exchange | None:
        """See ``Peers``."""
        if count not in self._fewer:
            there = self.rank < count
            self._fewer[count] = ThreadExchange(self._meeting, self.rank, count) if there else None
        return self._fewer[count]

    def least(self, found: Callable[[], Room]) -> Room:
        """See ``Peers``. All raise the same."""

        def told() -> Room:
            try:
                return found()
            except TvaeError as error:
                self._meeting.refused[self.rank] = error
                raise

        return super().least(told)

    def check_alike(self, facts: Sequence[tuple[str, object]]) -> None:
        """They are: they compute the same call of one object."""

    def _why_failed(self, rank: int, by_plan: int) -> TvaeError:
        return self._meeting.refused[rank]
