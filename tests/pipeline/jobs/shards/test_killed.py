"""Runs that are killed: what is complete stays, and the next run makes the bytes that an undisturbed one makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shard_files import photo, samples_in
from shard_worker import cache

from tvae.pipeline.jobs import ItemDone, ItemSkipped

WORKER = Path(__file__).parents[3] / "helpers" / "shard_worker.py"
posix = pytest.mark.skipif(sys.platform == "win32", reason="has no fork")


def content(folder: Path) -> dict[str, bytes]:
    """Of all files, hidden ones too; records say when sources were changed, which stays as it is here."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check(folder: Path, out: Path, most: int) -> None:
    """All folders hold the same in the end, records included."""
    words = [sys.executable, str(WORKER), str(folder), str(out), str(most)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    numbers = done.stdout.split()
    assert len(numbers) > most / 2
    whole = content(Path(f"{out}-0"))
    for number in numbers:
        assert content(Path(f"{out}-{number}")) == whole, number


def keys(out: Path) -> list[str]:
    return [one["key"] for one in samples_in(out)]


@posix
@pytest.mark.slow
@pytest.mark.parametrize("most", [4, 60])
def test_killed_at_an_operation_and_run_again(photos: Any, tmp_path: Path, most: int) -> None:
    folder, out = photos(12), tmp_path / "out"
    check(folder, out, most)
    assert keys(Path(f"{out}-0")) == [f"{n:03}" for n in range(12)]


@posix
@pytest.mark.slow
@pytest.mark.parametrize("most", [3, 60])
def test_killed_while_stale_samples_leave_their_shards(photos: Any, tmp_path: Path, most: int) -> None:
    folder, out = photos(12), tmp_path / "out"
    cache(str(folder), f"{out}-before")
    photo(folder / "001.png", 90)
    photo(folder / "006.png", 91)
    check(folder, out, most)
    order = keys(Path(f"{out}-0"))
    assert sorted(order) == [f"{n:03}" for n in range(12)]
    assert order[-2:] == ["001", "006"]


def test_complete_shards_stay_when_a_run_is_interrupted(
    fill: Any, photos: Any, run: Any, bytes_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tvae.pipeline.jobs.shards import Shards

    photos(12)
    fill(output=tmp_path / "whole")
    compute, calls = Shards.compute, [0]

    def interrupt(self: Any, model: Any, values: Any) -> Any:
        calls[0] += len(values)
        if calls[0] > 10:
            raise KeyboardInterrupt
        return compute(self, model, values)

    monkeypatch.setattr(Shards, "compute", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fill(batch=1)
    monkeypatch.undo()
    out = tmp_path / "out"
    left = bytes_of(out)
    whole = bytes_of(tmp_path / "whole")
    assert {*left} <= {"00000.tar", "00001.tar"}
    assert all(whole[name] == data for name, data in left.items())
    assert not [path for path in (out / ".tvae-shards").iterdir() if path.suffix == ".tmp"]
    events = fill(batch=1)
    assert sum(isinstance(event, ItemSkipped) for event in events) == 5 * len(left)
    assert sum(isinstance(event, ItemDone) for event in events) == 12 - 5 * len(left)
    assert bytes_of(out) == whole
