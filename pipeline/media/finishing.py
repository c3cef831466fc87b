"""The end of one thing in a thread, while the next is begun."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tvae.pipeline.files.bell import join

__all__ = ["Finishing"]


class Finishing:
    """One at a time, for one thread."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Does it in a thread; what was begun before has to have ended."""
        assert self._thread is None, "wait first"

        def body() -> None:
            try:
                work()
            except BaseException as error:  # whatever it is, the thread that waits raises it
                self._error = error

        self._thread = threading.Thread(target=body, name="tvae-finish-part", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until it has ended. Raises what it raised, once."""
        self.leave()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def leave(self) -> None:
        """Until it has ended, well or not."""
        if self._thread is not None:
            join([self._thread])
            self._thread = None
