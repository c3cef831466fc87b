"""A process that was forked during a call ends its own with an error; it does not wait for a thread it lacks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest
from process_copy import process_copy
from tiny_vaes import TINY
from torch import Tensor

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UsageError
from tvae.pipeline.session.turns import Turns

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
LITTLE = TINY["AutoencoderTiny"]


def in_a_copy(work: Callable[[], object]) -> int:
    """0: it ran; 2: it was refused; 3: another error. A copy that waits is ended by its alarm."""
    process = process_copy()
    if process == 0:
        import signal

        signal.alarm(20)
        try:
            work()
        except UsageError as error:
            os._exit(2 if "was forked while another thread" in str(error) else 3)
        except BaseException:
            os._exit(3)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def test_what_another_thread_has_is_refused_in_a_copy() -> None:
    mine, theirs, idle, seen, over = Turns(), Turns(), Turns(), threading.Event(), threading.Event()

    def holds() -> None:
        with theirs:
            seen.set()
            over.wait()

    def take(turns: Turns) -> None:
        with turns, turns:
            pass

    thread = threading.Thread(target=holds)
    thread.start()
    seen.wait()
    try:
        with mine:
            assert [in_a_copy(lambda t=turns: take(t)) for turns in (mine, idle, theirs)] == [0, 0, 2]  # type: ignore[misc]
    finally:
        over.set()
        thread.join()
    take(theirs)
    assert in_a_copy(lambda: take(theirs)) == 0


def test_other_threads_of_a_copy_have_their_turns() -> None:
    """To look leaves the lock as it was."""
    idle, taken = Turns(), threading.Event()

    def take() -> None:
        with idle:
            taken.set()

    def work() -> None:
        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        if not taken.wait(5):
            raise TimeoutError

    assert in_a_copy(work) == 0


@pytest.mark.long
def test_a_copy_made_during_a_call() -> None:
    """That model's calls are refused there; another model's and, between calls, all of them work."""
    model, x = LITTLE.build(), LITTLE.input("decode", 4, 4)
    other = TiledVAE(LITTLE.build())
    tiled, inside, over = TiledVAE(model), threading.Event(), threading.Event()
    other.decode(x)
    tiled.decode(x)

    class Waits(type(model)):  # type: ignore[misc]
        @property
        def config(self) -> object:
            if threading.current_thread() is thread:
                inside.set()
                over.wait()
            return super().config

    thread = threading.Thread(target=lambda: tiled.decode(x))
    model.__class__ = Waits
    thread.start()
    assert inside.wait(20)

    def call(one: TiledVAE) -> Tensor:
        found: Tensor = one.decode(x).sample
        return found

    try:
        assert in_a_copy(lambda: call(tiled)) == 2
        assert in_a_copy(lambda: tiled.to("cpu")) == 2
        assert in_a_copy(lambda: call(other)) == 0
    finally:
        over.set()
        thread.join()
    assert in_a_copy(lambda: call(tiled)) == 0
