"""A call that ranks share and in which this one fails, so that the others neither wait for it nor use what it has not
computed.

The caller may catch the error and go on. So the rank goes on with the call first: it tells what the others want to know
next, sends what they wait for (``empty_run``), and raises its error when they need nothing more. They hear of it in
their last word of the call, and raise an error that names it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tvae.pipeline.errors import RankError
from tvae.pipeline.session.words import Words, of_error

__all__ = ["FailedCall"]

T = TypeVar("T")


class FailedCall:
    """Of one rank. told_at_end: is there a word when a call has been computed? Where there is none the others hear of a
    failure at the next call, and what they have is NaN."""

    error: BaseException | None = None
    """This rank's, in the midst of the call that is made now. What it computes from then on is of no use."""
    _within = _open = False

    def __init__(self, words: Words, *, told_at_end: bool) -> None:
        self._words, self._told_at_end, self._late = words, told_at_end, ""

    @property
    def within(self) -> bool:
        """Is such a call made now?"""
        return self._within

    @contextmanager
    def call(self, *, of_all: bool = True) -> Iterator[None]:
        """Around what the caller asks for. of_all: every rank does, so that the others wait for a word of this one even
        where it has told none yet."""
        before = self._words.told
        self._within, self._open, self.error = True, True, None
        try:
            yield
            if self.error is not None:
                raise self.error
        except RankError:  # known to the others, or past help
            raise
        except BaseException as error:
            if self._open and (of_all or self._words.told > before):
                self._words.tell_failed(f"failed in this call: {of_error(error)}")
            raise
        finally:
            self._within, self.error = False, None

    def begin(self) -> None:
        """The others are about to be told of a call. Raises RankError on all where this one failed in the last one."""
        self._open = True
        if self._late:
            late, self._late = self._late, ""
            self._words.tell_failed(late)
            raise RankError(f"this rank {late}; all ranks raise this now, so that their next calls are the same ones")

    def end(self) -> None:
        """It has been computed. Raises this rank's error."""
        if self.error is None:
            return
        if not self._told_at_end:
            self._late = f"failed in the call before this one, which may have given NaN: {of_error(self.error)}"
            self._open = False
        raise self.error

    def over(self) -> None:
        """The others need nothing more."""
        self._open = False

    def keep(self, error: BaseException) -> None:
        """This rank has failed: the call goes on for the others alone. Raises the error where none of them waits."""
        if not self._within or isinstance(error, RankError):
            raise error
        if self.error is None:
            self.error = error
            traceback.clear_frames(error.__traceback__)  # what lies there is memory that was short

    @contextmanager
    def kept(self) -> Iterator[None]:
        """What the block raises is kept, see ``keep``."""
        try:
            yield
        except BaseException as error:  # whatever it is, the others wait for this rank
            self.keep(error)

    def uninterrupted(self, every: Callable[[], T]) -> Callable[[], T]:
        """The same, which gives what others have told even where it is interrupted once: they go by it, too."""

        def heard() -> T:
            try:
                return every()
            except KeyboardInterrupt as error:
                self.keep(error)
                return every()

        return heard
