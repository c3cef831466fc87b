"""The longest that a capture may take.

Arithmetic on symbolic sizes can grow without end: padding that a model computes from sizes, layer after layer, is an
expression inside an expression. No call of the exporter returns in between, so another thread interrupts it.
"""

from __future__ import annotations

import ctypes
import linecache
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from types import TracebackType

import torch
from torch import nn

from tvae.pipeline.engine.capture.made_constant import module_of
from tvae.pipeline.engine.ir.graph import Constant

__all__ = ["SECONDS", "TookTooLong", "deadline", "place_in"]

SECONDS = 60.0


class TookTooLong(BaseException):
    """Raised in the thread that captures. Not an ``Exception``: the exporter goes on after many of those."""


@contextmanager
def deadline(seconds: float = SECONDS) -> Iterator[None]:
    """Raises TookTooLong in this thread when the block has taken so many seconds: of its processor time where the
    system tells that of other threads, so that a busy machine is not a slow model; else of time."""
    thread, clock = threading.get_ident(), _clock_of_this_thread()
    over, sent, lock = threading.Event(), threading.Event(), threading.Lock()
    ends, arrived = clock() + seconds, False

    def watch() -> None:
        while not over.wait(max(0.05, ends - clock())):
            if clock() < ends:
                continue
            with lock:
                if not over.is_set():
                    sent.set()
                    _raise_in(thread, TookTooLong)
            return

    watcher = threading.Thread(target=watch, name="tvae capture deadline", daemon=True)
    watcher.start()
    try:
        yield
    except TookTooLong:
        arrived = True
        raise
    finally:
        try:
            with lock:
                over.set()
            for _ in range(100 if sent.is_set() and not arrived else 0):
                time.sleep(0)  # it arrives within a few steps, unless somebody in the block caught it
        except TookTooLong:
            pass  # it was on its way when the block ended
        watcher.join()


def _clock_of_this_thread() -> Callable[[], float]:
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    if clock_of is None or os.name != "posix":
        return time.monotonic
    clock = clock_of(threading.get_ident())
    return lambda: time.clock_gettime(clock)


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """In that thread, at its next step in Python. It cannot be taken back: CPython would look for it at every step."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def place_in(model: nn.Module, traceback: TracebackType | None) -> Constant:
    """Where in a model an exception came from: its innermost module, and the operation or line there."""
    names = {id(module): name for name, module in model.named_modules()}
    places = list(walk_tb(traceback))[::-1]
    op = ""
    for frame, number in places:
        inside = frame.f_locals
        if isinstance(inside.get("func"), torch._ops.OpOverload):
            op = str(inside["func"])
        if (module := module_of(frame, names)) is not None:
            line = linecache.getline(frame.f_code.co_filename, number).strip()
            return Constant(op or line, module)
    return Constant(op or "torch.export", "")
