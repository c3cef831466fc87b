"""A region at the bottom of a terminal: who draws it and how often, and that lines above it are all there."""

from __future__ import annotations

import errno
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text
from terminal import Terminal

from tvae.cli import screen
from tvae.cli.screen import Screen

COLUMNS = 60


class Region:
    """Two lines that say which drawing this is; notes when, and by which thread."""

    def __init__(self) -> None:
        self.drawn: list[tuple[float, int]] = []

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        self.drawn.append((time.monotonic(), threading.get_ident()))
        yield Text(f"region {len(self.drawn)}\nits second line")


class Blocked(io.StringIO):
    """A terminal that takes nothing while ``open`` is not set, and raises ``error`` if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        self.open.wait(20)
        if self.error is not None:
            raise self.error
        return super().write(text)


def on(file: io.StringIO) -> Console:
    return Console(
        file=file,
        force_terminal=True,
        width=COLUMNS,
        height=20,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
        legacy_windows=False,
    )


@pytest.fixture
def file() -> Blocked:
    return Blocked()


def stands(file: io.StringIO) -> Terminal:
    terminal = Terminal(COLUMNS)
    terminal.feed(file.getvalue())
    return terminal


def until(met: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not met():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_lines_stand_above_the_region_and_then_alone(file: Blocked) -> None:
    region = Region()
    told = [f"line {n} [red]as it is[/red] :smile:" for n in range(30)]
    with Screen(on(file), region, shown=True) as shown:
        for line in told:
            shown.line(line)
            time.sleep(0.02)
        until(lambda: told[-1] in file.getvalue())
        found = stands(file)
        assert found.lines[:-2] == told
        assert found.lines[-2].startswith("region ")
        assert found.lines[-1] == "its second line"
        assert not found.cursor_shown
        shown.line("the last\nin two lines")
    found = stands(file)
    assert found.lines == [*told, "the last", "in two lines"]
    assert found.cursor_shown


@pytest.mark.slow
def test_another_thread_draws_a_few_times_a_second(file: Blocked) -> None:
    region = Region()
    before = {*threading.enumerate()}
    with Screen(on(file), region, shown=True) as shown:
        (drawer,) = {*threading.enumerate()} - before
        begin, region.drawn = time.monotonic(), []
        spent, count = time.thread_time(), 0
        while time.monotonic() - begin < 1.5:
            shown.line(f"line {count}")
            count += 1
            time.sleep(0.001)
        spent = (time.thread_time() - spent) / count
        drawn = [*region.drawn]
        seconds = time.monotonic() - begin
    assert count > 100
    assert {thread for _, thread in drawn} == {drawer.ident}
    assert 1 <= len(drawn) <= seconds / screen.DRAW_SECONDS + 1 <= 10 * seconds + 1
    assert spent < 0.0005, "a line costs whoever tells it next to nothing"
    assert not drawer.is_alive()
    assert stands(file).lines == [f"line {n}" for n in range(count)]


@pytest.mark.long
def test_a_slow_terminal_holds_up_who_tells_too_much(file: Blocked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "WAITING", 10)
    told = 0
    with Screen(on(file), Region(), shown=True) as shown:
        file.open.clear()

        def tell() -> None:
            nonlocal told
            for number in range(50):
                shown.line(f"line {number}")
                told += 1

        teller = threading.Thread(target=tell)
        teller.start()
        time.sleep(4 * screen.DRAW_SECONDS)
        assert 10 <= told < 50
        file.open.set()
        teller.join(20)
    assert stands(file).lines == [f"line {n}" for n in range(50)]


def test_a_terminal_that_is_gone_ends_the_run(file: Blocked) -> None:
    def run() -> None:
        with Screen(on(file), Region(), shown=True) as shown:
            try:
                file.error = OSError(errno.EIO, "no terminal")
                end = time.monotonic() + 20
                while time.monotonic() < end:
                    shown.line("told")
                    time.sleep(0.01)
            finally:
                file.error = None

    with pytest.raises(OSError, match="no terminal"):
        run()
    assert stands(file).cursor_shown
    assert not [thread for thread in threading.enumerate() if thread.name == "tvae-draws"]


def test_a_terminal_that_is_gone_is_told_even_where_lines_wait(file: Blocked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes the lines any more."""
    monkeypatch.setattr(screen, "WAITING", 3)

    def run() -> None:
        with Screen(on(file), Region(), shown=True) as shown:
            file.error = OSError(errno.EIO, "no terminal")
            try:
                for _ in range(100):
                    shown.line("told")
            finally:
                file.error = None

    with pytest.raises(OSError, match="no terminal"):
        run()


def test_whatever_ends_the_block_leaves_the_terminal_as_it_was(file: Blocked) -> None:
    errors = sys.stderr

    def run() -> None:
        with Screen(on(file), Region(), shown=True) as shown:
            shown.line("told before")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert stands(file).lines == ["told before"]
    assert stands(file).cursor_shown
    assert sys.stderr is errors


@pytest.mark.long
def test_what_others_write_to_stderr_is_whole(file: Blocked) -> None:
    with Screen(on(file), Region(), shown=True) as shown:
        for number in range(5):
            shown.line(f"line {number}")
            print(f"stderr {number}", file=sys.stderr)
            time.sleep(1.2 * screen.DRAW_SECONDS)
        threading.Thread(target=lambda: print("of another thread", file=sys.stderr)).start()
        until(lambda: "of another thread" in file.getvalue())
    lines = stands(file).lines
    assert sorted(lines) == sorted(
        [*(f"{who} {n}" for who in ("line", "stderr") for n in range(5)), "of another thread"]
    )


def test_where_nothing_is_shown_lines_come_at_once(file: Blocked) -> None:
    region, before = Region(), threading.active_count()
    with Screen(on(file), region, shown=False) as shown:
        shown.line("told")
        assert file.getvalue() == "told\n"
        assert threading.active_count() == before
    assert file.getvalue() == "told\n"
    assert region.drawn == []
