"""Commands by chance: each ends with an exit code that says why, keeps its inputs, and does nothing when repeated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from program import invoke
from random_commands import Commands, make_pool
from typer.testing import Result

CODES = {"verify": {0, 2, 3, 4}}
"""Exit codes that a command may have; of the others 0, 2 and 3."""
WORK = ("encode", "decode", "roundtrip", "cache")


def tvae(*words: object) -> Result:
    return invoke([*map(str, words)])


def must(*words: object) -> None:
    done = tvae(*words)
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from diffusers.utils import logging

    logging.get_logger()  # writes to where stderr is now, and not to that of the first command
    folder = tmp_path_factory.mktemp("random") / "pool"
    make_pool(folder, must)
    return folder


def files(folder: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of all of them."""
    return {path: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in _below(folder)}


def _below(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir())


def check_told(words: list[str], done: Result) -> None:
    assert done.exit_code in CODES.get(words[0], {0, 2, 3})
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert "-v" in words or "Traceback" not in done.output
    if done.exit_code == 2 and "-q" not in words:
        assert any(line.startswith("tvae: ") for line in done.output.splitlines())
    if "--json" in words and done.exit_code in (0, 3):
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert words[0] not in WORK or events[-1]["type"] == "run_done"


def check_left(words: list[str], done: Result, out: Path) -> None:
    assert not [path for path in _below(out) if path.name.endswith((".tmp", ".lock"))]
    if done.exit_code == 2:
        assert not out.exists() or not [*_below(out)]
    elif done.exit_code == 0 and words[0] in ("encode", "decode", "cache") and "--overwrite" not in words:
        before = files(out)
        assert tvae(*words).exit_code == 0
        assert files(out) == before


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_commands(pool: Path, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = files(pool)
    for number in range(50):
        out = tmp_path / f"out{number}"
        words = Commands(1000 * seed + number, pool, out).draw()
        done = tvae(*words)
        try:
            check_told(words, done)
            check_left(words, done, out)
            assert files(pool) == given
        except AssertionError as error:
            raise AssertionError(f"tvae {' '.join(words)}\nexit code {done.exit_code}\n{done.output}") from error
