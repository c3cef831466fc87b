"""How every command ends: one line for what went wrong, and the exit code."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from types import FrameType
from typing import TextIO

import typer

from tvae.cli.exit_codes import ExitCode, Terminated, code_for, is_told, of_a_name

__all__ = ["one_line", "printable", "printable_lines", "reporting", "say", "say_builtin", "tell", "unheard"]

_TURNING = {*map(chr, (0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)))}
"""Characters that change the direction of the text around them."""


def say(message: str) -> None:
    """One line on stderr."""
    with unheard():
        print(f"tvae: {one_line(message)}", file=sys.stderr, flush=True)


@contextmanager
def unheard(stream: TextIO | None = None) -> Iterator[None]:
    """Around what prints on stderr, or on this stream: where that takes no more, such as a log on a full disk, work
    does not end, or ends as it would have."""
    try:
        yield
    except OSError:
        _drop(stream or sys.stderr)


def say_builtin() -> None:
    """The VAE was taken because none was named."""
    say("the built-in VAE was used, which is for previews and tests; name your model's with --vae")


def tell(text: str) -> None:
    """Lines on stdout, at once, printable. Raises OutputError where stdout takes no more, such as a file on a full
    disk."""
    try:
        print(printable_lines(text), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        from tvae.pipeline.errors import OutputError

        _drop(sys.stdout)
        raise OutputError(f"cannot write to standard output: {error.strerror}; check where it goes") from error


def _drop(stream: TextIO) -> None:
    """Or flushing it at exit fails again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def one_line(message: str) -> str:
    """Libraries' messages may have more; and names in them whatever a file's name can have."""
    return printable(" ".join(line.strip() for line in message.splitlines()))


def printable(text: str) -> str:
    """With escapes such as ``\\n`` and ``\\x1b`` in the place of what would move the terminal's cursor, end the line or
    turn it around."""
    if text.isprintable():
        return text
    return "".join(_escaped(character) if _moves(character) else character for character in text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def _moves(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in _TURNING


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


@contextmanager
def reporting(
    verbose: bool = False, as_json: bool = False, *, quiet: bool = False, resumable: bool = False
) -> Iterator[None]:
    """Turns whatever ends the block into one line on stderr and ``typer.Exit`` with its code.

    With ``verbose`` the traceback comes first, and what is logged meanwhile is shown; with ``as_json`` the line is also
    an object on stdout. While the block runs, SIGTERM unwinds it like Ctrl-C. quiet: what is told on stdout is dropped,
    but for JSON. resumable: the same command goes on where the block was left.
    """
    silent = _nothing_told() if quiet and not as_json else nullcontext()
    with _sigterm_raises(), _log_shown() if verbose else nullcontext(), silent:
        try:
            yield
        except typer.Exit:
            raise
        except BrokenPipeError:  # whoever read our output has gone; there is nobody to tell
            _drop(sys.stdout)
            raise typer.Exit(ExitCode.UNHEARD) from None
        except (Exception, KeyboardInterrupt, Terminated) as error:  # whatever it is, it is told and has its code
            code = code_for(error)
            message = _describe(error, code, resumable)
            if verbose:
                import traceback

                with unheard():
                    print(printable_lines("".join(traceback.format_exception(error))), end="", file=sys.stderr)
            say(message)
            if as_json:
                with unheard(sys.stdout):
                    print(json.dumps({"type": "error", "error": message, "code": int(code)}), flush=True)
            raise typer.Exit(int(code)) from error


def _describe(error: BaseException, code: ExitCode, resumable: bool) -> str:
    if code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
        ended = "interrupted" if code is ExitCode.INTERRUPTED else "terminated"
        return f"{ended}; complete results stay; run the same command to continue" if resumable else ended
    if isinstance(error, OSError) and of_a_name(error):
        return f"cannot open '{error.filename}': {error.strerror}"
    if code is ExitCode.INTERNAL and not is_told(error):
        return f"internal error: {type(error).__name__}: {error} (-v shows where)"
    return str(error)


class _ToStderr(logging.Handler):
    """Whatever stderr is when something is logged: a progress bar puts itself before it."""

    def emit(self, record: logging.LogRecord) -> None:
        with unheard():
            print(printable_lines(self.format(record)), file=sys.stderr, flush=True)


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
def _nothing_told() -> Iterator[None]:
    with open(os.devnull, "w", encoding="utf-8") as nothing, redirect_stdout(nothing):
        yield


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
