"""Lines of what was just made say what its file holds, and nobody reads it again while the device waits."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from job_files import DECODE, ENCODE, NAME, photo

from tvae.pipeline.batch import manifest, recorded
from tvae.pipeline.batch.job_file import read_job_file
from tvae.pipeline.batch.manifest import Manifest
from tvae.pipeline.batch.manifest_lines import facts_on_disk, read_manifest
from tvae.pipeline.batch.run import Options, run_batch
from tvae.pipeline.jobs import Event, ItemDone, RunStarted
from tvae.pipeline.jobs.facts import facts_of
from tvae.pipeline.media.formats import WRITTEN_SUFFIXES

Batch = Callable[..., Any]
STEP = '[[step]]\noperation = "encode"\ninputs = "in"\noutput = "out"\n'


def check(folder: Path, count: int) -> None:
    """Each line against a reading of its file; the source's size against the disk."""
    found = read_manifest(folder / NAME)
    assert len(found) == count
    for name, line in found.items():
        expected = {**facts_on_disk(folder / name), **facts_of(folder / name)}
        assert {key: line.get(key) for key in expected} == expected
        assert "fingerprint" in expected
        assert line["source_bytes"] == Path(line["source"]).stat().st_size


def without_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "made_of", lambda _output: pytest.fail("the output is read again"))


@pytest.mark.parametrize("kept", ["", 'posterior = "moments"\n', 'posterior = "sample"\n', 'space = "model"\n'])
def test_latents(kept: str, batch: Batch, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        without_reading(patch)
        batch(ENCODE + kept)
    check(tmp_path / "out", 9)


def test_decoded_pictures(batch: Batch, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        without_reading(patch)
        batch(ENCODE + DECODE)
    check(tmp_path / "back", 9)


def test_reconstructed_pictures_of_all_formats(batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for suffix in WRITTEN_SUFFIXES["image"]:
        photo(tmp_path / "in" / f"a{suffix}", 1)
    with monkeypatch.context() as patch:
        without_reading(patch)
        batch(STEP.replace("encode", "roundtrip") + 'naming = "{stem}-{hash}"\n')
    check(tmp_path / "out", len(WRITTEN_SUFFIXES["image"]))


def test_a_changed_line_would_be_seen(batch: Batch, photos: Path, tmp_path: Path) -> None:
    batch(ENCODE)
    (name, *_) = read_manifest(tmp_path / "out" / NAME)
    with (tmp_path / "out" / name).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\0\0")
    with pytest.raises(AssertionError):
        check(tmp_path / "out", 9)


class Watched:
    """What the caller's thread, which gives the device its work, asks of files while items are done."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked = list[str]()
        self._caller, self._on = threading.current_thread(), False
        for name in ("stat", "lstat", "open", "fsync"):
            patch.setattr(os, name, self._noting(name, getattr(os, name)))

    def hear(self, event: Event) -> None:
        self._on |= isinstance(event, RunStarted)

    def end(self) -> list[str]:
        self._on = False
        return self.asked

    def _noting(self, name: str, of: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*values: Any, **named: Any) -> Any:
            if self._on and threading.current_thread() is self._caller:
                self.asked.append(f"{name} {values[0]}")
            return of(*values, **named)

        return noted


def job(tmp_path: Path, count: int) -> list[Any]:
    for n in range(count):
        photo(tmp_path / "in" / f"{n:03}.png", n)
    text = f'device = "cpu"\nbatch = 16\nthreads = 2\n{STEP}'
    (tmp_path / "job.toml").write_text(text, encoding="utf-8")
    return [*read_job_file(tmp_path / "job.toml")]


@pytest.mark.long
def test_the_callers_thread_asks_nothing_of_an_items_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item adds no look at a file, no reading and no flush to the thread that the device waits for. Of the whole
    run there are a few: imports, and the end of the manifest."""
    watched = Watched(monkeypatch)
    run_batch(job(tmp_path, 40), Options(), watched.hear)
    of_items = [one for one in watched.end() if ".png" in one]
    assert of_items == []
    assert len([one for one in watched.asked if one.startswith("fsync")]) <= 2
    assert len(read_manifest(tmp_path / "out" / NAME)) == 40


def test_items_that_end_together_are_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of one call end while the first is told of; the others are told of, and written, as a group."""
    groups, inside = list[int](), list[Event]()
    together = Manifest.together

    @contextmanager
    def noted(self: Manifest) -> Iterator[None]:
        inside.clear()
        with together(self):
            yield
            lines = (tmp_path / "out" / NAME).read_bytes().count(b"\n") if groups else 0
            assert lines == sum(groups), "nothing is written before its end"
        groups.extend([len(inside)] if inside else [])

    def hear(event: Event) -> None:
        if isinstance(event, ItemDone):
            inside.append(event)
            threading.Event().wait(0.05)

    monkeypatch.setattr(Manifest, "together", noted)
    run_batch(job(tmp_path, 16), Options(), hear)
    assert sum(groups) == 16
    assert len(groups) < 16, groups
    assert len(read_manifest(tmp_path / "out" / NAME)) == 16


def test_a_group_that_an_exception_ends_has_its_lines(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    with suppress(KeyError), Manifest(tmp_path) as run, run.together():
        run.done(tmp_path / "a", {})
        run.done(tmp_path / "b", {})
        assert read_manifest(tmp_path / NAME) == {}
        raise KeyError
    assert read_manifest(tmp_path / NAME).keys() == {"a", "b"}
    with Manifest(tmp_path) as run:
        with run.together():
            run.done(tmp_path / "a", {"again": 1})
        assert read_manifest(tmp_path / NAME)["a"]["again"] == 1


def test_a_source_has_its_whole_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.png", "sub/../a.png", "..", ".", str(tmp_path / "a.png")):
        assert recorded.whole_name(Path(name)) == str(Path(name).absolute())
