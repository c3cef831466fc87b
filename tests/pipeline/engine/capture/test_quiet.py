"""Quiet in one thread: all others hear their own, whatever they do to filters meanwhile, and nothing is left behind."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tvae.pipeline.engine.capture.quiet import quiet, without_warnings


class Other:
    """Another thread, which does what it is told and is waited for."""

    def __call__(self, what: Callable[[], Any]) -> Any:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(what()))
        thread.start()
        thread.join(20)
        return found[0]


other = Other()


@pytest.fixture(autouse=True)
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was shown of warnings, each of them, every time."""
    shown: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", lambda message, *_args, **_kwargs: shown.append(str(message)))
        before = [*warnings.filters]
        yield shown
        assert warnings.filters == before


def warn(text: str) -> None:
    warnings.warn(text, stacklevel=1)


def test_warnings_of_this_thread_alone(heard: list[str]) -> None:
    with without_warnings():
        warn("mine")
        other(lambda: warn("its own"))
    warn("after")
    assert heard == ["its own", "after"]


def test_none_is_raised_either(heard: list[str]) -> None:
    kept = [*warnings.filters]
    warnings.simplefilter("error")
    with without_warnings():
        warn("mine")
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # who asks for it inside gets it
            assert isinstance(_raised("mine too"), UserWarning)
        assert isinstance(other(lambda: _raised("its own")), UserWarning)
    assert isinstance(_raised("after"), UserWarning)
    warnings.filters[:] = kept  # type: ignore[index]


def _raised(text: str) -> Warning | None:
    try:
        warn(text)
    except Warning as warning:
        return warning
    return None


def test_what_was_shown_once_is_not_shown_again() -> None:
    """Changes that Python notes of would make it forget, in all threads."""
    code = """
import warnings
from tvae.pipeline.engine.capture.quiet import without_warnings
def say():
    warnings.warn("once a place")
warnings.resetwarnings()
warnings.simplefilter("default")
shown = []
warnings.showwarning = lambda message, *args: shown.append(message)
say()
with without_warnings():
    pass
say()
assert len(shown) == 1, shown
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_another_thread_came_before_and_leaves_meanwhile(heard: list[str]) -> None:
    theirs = warnings.catch_warnings()
    other(theirs.__enter__)
    with without_warnings() as stay:
        warn("mine")
        other(lambda: theirs.__exit__(None, None, None))
        stay()
        warn("mine, still")
        other(lambda: warn("its own"))
    warn("after")
    assert heard == ["its own", "after"]


def test_a_list_that_others_hold_on_to_is_cleared(heard: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are known, without a look at all that there is."""
    monkeypatch.setattr("gc.get_referrers", lambda *_: [])
    held = warnings.filters
    with without_warnings():
        theirs = warnings.catch_warnings()
        other(theirs.__enter__)
        assert warnings.filters is not held
    assert all(not hasattr(text, "match") or hasattr(text, "pattern") for _, text, *_ in held)
    other(lambda: theirs.__exit__(None, None, None))


def test_another_thread_comes_meanwhile_and_leaves_later(heard: list[str]) -> None:
    """It puts back the list that it found: it holds nothing of ours by then."""
    first, second = warnings.catch_warnings(), warnings.catch_warnings()
    with without_warnings():
        other(first.__enter__)
        other(second.__enter__)
        warn("mine")
    other(lambda: second.__exit__(None, None, None))
    warn("between")
    other(lambda: first.__exit__(None, None, None))
    warn("after")
    assert heard == ["between", "after"]


def test_the_list_is_emptied_meanwhile(heard: list[str]) -> None:
    kept = [*warnings.filters]
    with without_warnings() as stay:
        warnings.resetwarnings()
        stay()
        warn("mine")
    assert warnings.filters == []
    warnings.filters[:] = kept  # type: ignore[index]
    assert heard == []


def test_many_threads_come_and_go(heard: list[str]) -> None:

    def work(number: int) -> None:
        for _ in range(50):
            with without_warnings():
                warn(f"muted {number}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        warn("here")
    for thread in threads:
        thread.join(20)
    assert heard == ["here"] * 200


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def test_logs_of_this_thread_alone() -> None:
    known, own, handler = logging.getLogger("torch.fx"), logging.getLogger("tvae"), Heard()
    loggers = [logging.getLogger("torch"), known, own]
    before = [[*logger.filters] for logger in loggers], logging.root.manager.disable
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with quiet() as stay:
            known.error("mine")
            other(lambda: known.error("its own"))
            own.error("ours")
            late = logging.getLogger("torch.of_this_test")
            stay()
            late.error("mine, of a logger that came later")
            other(lambda: late.error("its own, of that logger"))
            assert logging.root.manager.disable == before[1]
        known.error("after")
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    assert [*dict.fromkeys(handler.messages)] == ["its own", "ours", "its own, of that logger", "after"]
    assert ([[*logger.filters] for logger in loggers], logging.root.manager.disable) == before
    assert late.filters == []


def test_pythons_own_way_of_filtering_does_the_same(heard: list[str]) -> None:
    """``warnings`` in Python, in the place of that in C: others may have it."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("warnings", warnings.__file__)
    assert spec is not None
    assert spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    blocked = sys.modules.get("_warnings")
    sys.modules["_warnings"] = None  # type: ignore[assignment]
    try:
        spec.loader.exec_module(plain)
    finally:
        sys.modules["_warnings"] = blocked  # type: ignore[assignment]
    shown: list[str] = []
    with without_warnings():
        plain.filters = warnings.filters  # type: ignore[attr-defined]
        plain.showwarning = lambda message, *_args: shown.append(str(message))  # type: ignore[attr-defined]
        plain.warn("mine")
        other(lambda: plain.warn("its own"))
    assert shown == ["its own"]
