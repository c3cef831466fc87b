"""``--quiet`` and ``--no-progress``, of every command: what is left on stdout and stderr, and what a terminal shows."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer.main
from terminal import Terminal
from typer.testing import Result

from tvae.cli import status_line
from tvae.cli.app import whole
from tvae.cli.status_line import StatusLine

Tvae = Callable[..., Result]


def commands(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from commands(inner, *path, name)
    else:
        yield " ".join(path), command


COMMANDS = dict(commands(typer.main.get_command(whole())))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_them(name: str) -> None:
    given = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert {"-q", "--quiet", "-v", "--verbose", "--no-progress"} <= given
    assert name == "preset export" or "--json" in given, "a preset is TOML already"


@pytest.fixture
def encoded(tvae: Tvae, photo: Path, tmp_path: Path) -> Path:
    assert tvae("encode", photo, "-o", tmp_path / "latents", "-q").exit_code == 0
    return tmp_path / "latents"


TELLING: dict[str, Callable[[Path, Path], list[Any]]] = {
    "plan": lambda photo, latents: ["plan", photo],
    "plan of a shape": lambda photo, latents: ["plan", "--shape", "64x48", "-v"],
    "inspect": lambda photo, latents: ["inspect", photo, latents / "photo.png.safetensors"],
    "verify": lambda photo, latents: ["verify", latents],
    "compare": lambda photo, latents: ["compare", photo, photo],
    "models": lambda photo, latents: ["models"],
    "doctor": lambda photo, latents: ["doctor"],
    "preset list": lambda photo, latents: ["preset", "list"],
    "preset show": lambda photo, latents: ["preset", "show", "h200"],
    "comfyui install": lambda photo, latents: ["comfyui", "install", photo.parent / "comfyui"],
    "bench io": lambda photo, latents: ["bench", "io", "--frames", "2", "--size", "32x32"],
}


@pytest.mark.parametrize("name", TELLING)
def test_nothing_but_errors_is_told(name: str, tvae: Tvae, photo: Path, encoded: Path) -> None:
    for folder in ("custom_nodes", "models"):
        (photo.parent / "comfyui" / folder).mkdir(parents=True)
    arguments = TELLING[name](photo, encoded)
    silent = tvae(*arguments, "--quiet")
    assert (silent.exit_code, silent.stdout) == (0, "")
    assert "-v" in arguments or silent.stderr == ""
    aloud = tvae(*arguments)
    assert (aloud.exit_code, bool(aloud.stdout)) == (0, True)
    as_json = tvae(*arguments, "--quiet", "--json")
    assert (as_json.exit_code, as_json.stdout[:1]) == (0, "{")


def test_a_preset_is_printed_all_the_same(tvae: Tvae, tmp_path: Path) -> None:
    assert tvae("preset", "export", "cpu", "-q").stdout == tvae("preset", "export", "cpu").stdout
    assert tvae("preset", "export", "cpu", "-q", "-o", tmp_path / "mine.toml").stdout == ""


def test_errors_are_told(tvae: Tvae, photo: Path, encoded: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    for arguments in (["plan", nowhere], ["inspect", nowhere], ["verify", nowhere], ["compare", photo, nowhere]):
        result = tvae(*arguments, "--quiet")
        assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
    other = tmp_path / "other.png"
    other.write_bytes(photo.read_bytes()[:-40])
    result = tvae("compare", photo, other, "-q")
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (3, "", 1)
    made = encoded / "photo.png.safetensors"
    made.write_bytes(made.read_bytes()[:-7])
    result = tvae("verify", encoded, "-q")
    assert (result.exit_code, len(result.stdout.splitlines())) == (4, 1)
    assert result.stdout.startswith(f"{made}: damaged: ")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    shown = Screen()
    monkeypatch.setattr(status_line, "sys", SimpleNamespace(stderr=shown))
    monkeypatch.setenv("COLUMNS", "40")
    return shown


def seen(screen: Screen) -> list[str]:
    terminal = Terminal(40)
    terminal.feed(screen.getvalue())
    return [line for line in terminal.lines if line]


def test_one_line_that_is_taken_away(screen: Screen) -> None:
    with StatusLine(shown=True) as line:
        line.show("a" * 200)
        assert seen(screen) == ["a" * 39]
        line.show("文" * 30 + "\x1b[2J\n")
        assert seen(screen) == ["文" * 19], "two columns each"
        line.show("short")
        assert seen(screen) == ["short"]
        line.clear()
        print("told", file=screen)
        line.show("more")
        assert seen(screen) == ["told", "more"]
    assert seen(screen) == ["told"]
    with suppress(ValueError), StatusLine(shown=True) as line:
        line.show("at work")
        int("none")
    assert seen(screen) == ["told"]


def test_what_changes_fast_is_shown_now_and_then(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(status_line.time, "monotonic", lambda: now)
    with StatusLine(shown=True) as line:
        for n in range(1000):
            line.often(f"{n} done")
            now += 1 / 1024
        assert screen.getvalue().count("done") == pytest.approx(10, abs=1)
        assert seen(screen)[0] > "900 done"


def test_nothing_is_shown_elsewhere(monkeypatch: pytest.MonkeyPatch, screen: Screen) -> None:
    with StatusLine(shown=False) as line:
        line.show("words")
        line.often("words")
    assert screen.getvalue() == ""
    monkeypatch.setattr(screen, "isatty", lambda: False)
    with StatusLine(shown=True) as line:
        line.show("words")
    assert screen.getvalue() == ""


@pytest.mark.parametrize("more", [[], ["--no-progress"], ["--quiet"], ["--json"]])
def test_what_is_verified_and_compared(
    more: list[str], photo: Path, encoded: Path, screen: Screen, capsys: pytest.CaptureFixture[str]
) -> None:
    made = encoded / "photo.png.safetensors"
    for arguments in (["verify", str(encoded)], ["compare", str(encoded), str(encoded)]):
        with pytest.raises(SystemExit) as ended:
            whole()([*arguments, *more])
        assert ended.value.code == 0
    written = screen.getvalue()
    assert seen(screen) == []
    assert ("1 fine" in written, "1 of 1" in written) == ((True, True) if not more else (False, False))
    assert made.exists()
    assert bool(capsys.readouterr().out) == (more != ["--quiet"])
