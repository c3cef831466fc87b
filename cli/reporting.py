"""How every command ends: one line for what went wrong, and the exit code."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

import typer

from tvae.cli.exit_codes import ExitCode, Terminated, code_for

__all__ = ["one_line", "reporting", "say"]


def say(message: str) -> None:
    """One line on stderr."""
    print(f"tvae: {one_line(message)}", file=sys.stderr, flush=True)


def one_line(message: str) -> str:
    """Libraries' messages may have more."""
    return " ".join(line.strip() for line in message.splitlines())


@contextmanager
def reporting(verbose: bool = False, as_json: bool = False, *, resumable: bool = False) -> Iterator[None]:
    """Turns whatever ends the block into one line on stderr and ``typer.Exit`` with its code.

    With ``verbose`` the traceback comes first, and what is logged meanwhile is shown; with ``as_json`` the line is also
    an object on stdout. While the block runs, SIGTERM unwinds it like Ctrl-C. resumable: the same command goes on where
    the block was left.
    """
    with _sigterm_raises(), _log_shown() if verbose else nullcontext():
        try:
            yield
        except typer.Exit:
            raise
        except BrokenPipeError:  # whoever read our output has gone; there is nobody to tell
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or flushing at exit fails again
            raise typer.Exit(ExitCode.INTERNAL) from None
        except (Exception, KeyboardInterrupt, Terminated) as error:  # whatever it is, it is told and has its code
            code = code_for(error)
            message = _describe(error, code, resumable)
            if verbose:
                import traceback

                traceback.print_exception(error)
            say(message)
            if as_json:
                print(json.dumps({"type": "error", "error": message, "code": int(code)}), flush=True)
            raise typer.Exit(int(code)) from error


def _describe(error: BaseException, code: ExitCode, resumable: bool) -> str:
    if code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
        ended = "interrupted" if code is ExitCode.INTERRUPTED else "terminated"
        return f"{ended}; complete results stay; run the same command to continue" if resumable else ended
    if code is ExitCode.INTERNAL:
        return f"internal error: {type(error).__name__}: {error} (-v shows where)"
    return str(error)


class _ToStderr(logging.Handler):
    """Whatever stderr is when something is logged: a progress bar puts itself before it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


@contextmanager
def _log_shown() -> Iterator[None]:
    """All that tvae logs, for as long as the block runs."""
    log, handler = logging.getLogger("tvae"), _ToStderr()
    handler.setFormatter(logging.Formatter("tvae: %(levelname)s: %(message)s"))
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.setLevel(before)
        log.removeHandler(handler)


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Only the main thread may set handlers; the one before is put back."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
