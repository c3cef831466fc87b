"""Ctrl-C and SIGTERM that Python has dropped.

It raises them between any two instructions of the main thread. Where that is in a finalizer or in a callback of a weak
reference, as they run while modules are imported, it prints a traceback and goes on as if there had been no signal.
"""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import suppress
from typing import Any

from tvae.cli.exit_codes import Terminated

__all__ = ["come_again"]

_LATER = 0.02
"""Seconds until the main thread has left what drops them; if it has not, the signal comes once more."""


def come_again() -> None:
    """From now on, for the whole process: a signal that was dropped is sent again, and nothing is printed. Of several
    that are dropped at once one is: the next would come while the command ends."""
    before, waiting = sys.unraisablehook, threading.Lock()

    def told(dropped: Any) -> None:
        if not issubclass(dropped.exc_type, (KeyboardInterrupt, Terminated)):
            before(dropped)
        elif waiting.acquire(blocking=False):
            number = signal.SIGTERM if issubclass(dropped.exc_type, Terminated) else signal.SIGINT
            again = threading.Timer(_LATER, _send, (number, waiting))
            again.daemon = True
            with suppress(RuntimeError):  # the process ends: it begins no more threads
                again.start()

    sys.unraisablehook = told


def _send(number: signal.Signals, waiting: threading.Lock) -> None:
    """To the main thread, which may be waiting."""
    waiting.release()
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, number)
    else:
        import _thread

        _thread.interrupt_main(number)
