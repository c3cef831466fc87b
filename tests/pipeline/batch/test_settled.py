"""A restart knows by the manifest what is done, and knows nothing that is not so."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip
from job_files import DECODE, ENCODE, NAME, outputs, photo
from slow_but import slow_but

from tvae.pipeline.batch.manifest_lines import read_manifest
from tvae.pipeline.jobs import Event, ItemDone, ItemPlanned, ItemSkipped, claimed, overlap
from tvae.pipeline.jobs.events import RunDone, RunStarted

Batch = Callable[..., Any]
ROUNDTRIP = ENCODE.replace("encode", "roundtrip").replace('"out"', '"round"')


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sources that a run has looked at."""
    names: list[str] = []
    looked_up = overlap.looked_up

    def noted(operation: Any, item: Any, context: Any, hold: Any) -> Any:
        names.append(item.source.name)
        return looked_up(operation, item, context, hold)

    monkeypatch.setattr(overlap, "looked_up", noted)
    return names


def test_what_is_done_is_not_looked_at(batch: Batch, photos: Path, looked_up: list[str], tmp_path: Path) -> None:
    first, _, _ = batch(ENCODE + DECODE + ROUNDTRIP)
    assert [result.done for result in first] == [9, 9, 9]
    assert len(looked_up) == 27
    looked_up.clear()
    results, events, _ = batch(ENCODE + DECODE + ROUNDTRIP)
    assert [(result.done, result.skipped) for result in results] == [(0, 9)] * 3
    assert looked_up == []
    assert [event.items for event in events if isinstance(event, RunStarted)] == [9, 9, 9]
    assert [(event.done, event.skipped) for event in events if isinstance(event, RunDone)] == [(0, 9)] * 3
    skipped = [event for event in events if isinstance(event, ItemSkipped)]
    assert {event.output for event in skipped} == {
        path for folder in ("out", "back", "round") for path in outputs(tmp_path / folder)
    }
    assert {event.index for event in skipped[:9]} == {*range(9)}


def test_new_ones_are_done_beside_them(batch: Batch, photos: Path, looked_up: list[str], tmp_path: Path) -> None:
    batch(ENCODE)
    looked_up.clear()
    photo(photos / "4b.png", 40)
    photo(photos / "9.gif", 41)
    ((result,), events, _) = batch(ENCODE)
    assert (result.done, result.skipped) == (2, 9)
    assert sorted(looked_up) == ["4b.png", "9.gif"]
    assert [event.items for event in events if isinstance(event, RunStarted)] == [11]
    looked_up.clear()
    batch(ENCODE)  # a GIF may be a clip by its name; its output tells
    assert looked_up == []


def test_no_locks_for_what_is_done(batch: Batch, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch(ENCODE, claim=True)
    monkeypatch.setattr(claimed, "one_writer", None)
    ((result,), _, _) = batch(ENCODE, claim=True)
    assert (result.done, result.skipped) == (0, 9)


def test_clips_are_looked_at(batch: Batch, looked_up: list[str], tmp_path: Path) -> None:
    """A part of one that has gone shows in no line."""
    (tmp_path / "in").mkdir()
    write_clip(tmp_path / "in" / "a.mp4", 20, sound=False)
    batch(ENCODE)
    looked_up.clear()
    part = min((tmp_path / "out" / "a.mp4.latents").glob("*.safetensors"))
    part.unlink()
    ((result,), _, _) = batch(ENCODE)
    assert (result.done, looked_up) == (1, ["a.mp4"])
    assert part.exists()


def _touch(path: Path, chance: random.Random) -> None:
    os.utime(path, ns=(chance.randrange(10**18), chance.randrange(10**18)))


def _rewrite(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes() + b"x" * chance.randrange(3))


def _forget(path: Path, _chance: random.Random) -> None:
    """Its line."""
    lines = path.parent / NAME if (path.parent / NAME).exists() else path.parent.parent / NAME
    kept = [line for line in lines.read_bytes().splitlines(keepends=True) if path.name.encode() not in line]
    lines.write_bytes(b"".join(kept))


def _remove(path: Path, _chance: random.Random) -> None:
    path.unlink()


def _nothing(_path: Path, _chance: random.Random) -> None:
    pass


def _ends(events: list[Event]) -> dict[str, str]:
    names = {ItemDone: "due", ItemPlanned: "due", ItemSkipped: "done"}
    return {event.input.name: names[type(event)] for event in events if type(event) in names}  # type: ignore[attr-defined]


@pytest.mark.long
@pytest.mark.parametrize("seed", slow_but([0, 1], range(4)))
def test_it_knows_what_an_exact_dry_run_finds(seed: int, batch: Batch, photos: Path, tmp_path: Path) -> None:
    """Which asks no manifest. Sources, outputs, lines and options are changed at random."""
    chance = random.Random(seed)
    operations = {"encode": ENCODE, "roundtrip": ROUNDTRIP}
    text = operations[chance.choice([*operations])]
    folder = tmp_path / ("out" if text is ENCODE else "round")
    options = [
        'size = "16x8"\n',
        "",
        "strip = 2\n",
        "encoder_options = {compress_level = 6}\n",
        "seed = 3\n",
        'align = "crop"\nsize = "15x8"\n',
    ]
    batch(text)
    for _ in range(3):
        for source in sorted(photos.rglob("*.png")):
            chance.choice([_nothing, _nothing, _touch, _rewrite])(source, chance)
        for made in outputs(folder):
            chance.choice([_nothing, _nothing, _nothing, _touch, _forget, _remove])(made, chance)
        wanted = text + chance.choice([*options, "", ""])
        _, expected, _ = batch(wanted, dry_run=True)
        _, events, _ = batch(wanted)
        assert _ends(events) == _ends(expected)
        assert read_manifest(folder / NAME).keys() == {path.relative_to(folder).as_posix() for path in outputs(folder)}


def test_latents_that_have_changed_are_decoded_again(batch: Batch, photos: Path, tmp_path: Path) -> None:
    batch(ENCODE + DECODE)
    _touch(tmp_path / "out" / "3.png.safetensors", random.Random(1))
    photo(photos / "4.png", 44)
    _, expected, _ = batch(DECODE, dry_run=True)
    assert [name for name, end in _ends(expected).items() if end == "due"] == ["3.png.safetensors"]
    results, _, _ = batch(ENCODE + DECODE)
    assert [(result.done, result.skipped) for result in results] == [(1, 8), (2, 7)]


def test_all_are_made_where_they_are_to_be_overwritten(batch: Batch, photos: Path) -> None:
    batch(ENCODE)
    ((result,), _, _) = batch(ENCODE + 'existing = "overwrite"\n')
    assert result.done == 9
