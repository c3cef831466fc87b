"""One item's output cannot be written: that item fails, and those alone that are written at the same time; nothing
half-written stays but complete parts of clips, and the next run does the rest."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from clips import write_clip
from faults import Denied, Fault, FullDisk, Removed, ShortFiles, mounted
from PIL import Image
from slow_but import slow_but

from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, ItemSkipped, Job, checkpoint, run_job
from tvae.pipeline.latents import open_latents

Run = Callable[..., Any]

OPERATIONS = ("encode", "decode", "roundtrip")
KINDS = ("image", "clip", "long")
"""*long* has several parts: 16 frames of one of latents, 128 of a film."""
FAULTS = ("full", "short", "denied", "removed")
MODELS = ("image", "steps", "whole", "by frames")


@dataclass(frozen=True)
class Cell:
    operation: str
    kind: str
    fault: str
    place: int
    """Of the item that is struck, in the batch of three."""
    number: int
    """Pages left free, bytes a file may have, or the open or event that the fault strikes at."""
    lasting: bool = True
    model: str = "image"


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A source of each kind."""
    folder = tmp_path_factory.mktemp("media")
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (160, 160, 3), dtype=np.uint8)).save(folder / "image.png")
    write_clip(folder / "clip.mkv", 5, sound=True)
    write_clip(folder / "long.mkv", 140, sound=True)
    return {path.stem: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def known() -> dict[Any, Any]:
    """Results of runs without a fault, and latents, by what they are of."""
    return {}


@pytest.fixture
def models(stand_in: Run) -> Callable[[str], Any]:
    def model(name: str) -> Any:
        if name == "image":
            return stand_in()
        made = stand_in(name == "steps", temporal_factor=4)
        made.goes_by_frames = name == "by frames"
        return made

    return model


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB for what is written."""
    with mounted(tmp_path / "mounted", "2m") as folder:
        yield folder


def is_progress(path: Path) -> bool:
    """Complete parts of a clip, which the next run continues."""
    if path.suffix == ".latents":
        names = {file.name for file in path.iterdir()} - {".tvae-state.safetensors"}
        return "index.json" not in names and names <= {f"{n:06d}.safetensors" for n in range(len(names))}
    return path.suffix == ".parts" and {file.suffix for file in path.iterdir()} <= {".packets", ".safetensors"}


def content(path: Path) -> Any:
    """What counts of an output: bytes, of latents the values and what is said of them (safetensors writes its metadata
    in any order), of a film the frames (x264 reads memory it has not written, and varies)."""
    if path.suffix in (".latents", ".safetensors"):
        reader = open_latents(path)
        parts = [(part.pts, {name: t.numpy().tobytes() for name, t in part.tensors.items()}) for part in reader]
        sound = {file.name: file.read_bytes() for file in path.glob("streams*")}
        return sorted(file.name for file in path.glob("*")), reader.meta, parts, sound
    if path.suffix != ".mp4":
        return path.read_bytes()
    with av.open(str(path)) as film:
        picture = [(frame.pts, frame.to_ndarray().tobytes()) for frame in film.decode(video=0)]
    with av.open(str(path)) as film:
        heard = [bytes(packet) for packet in film.demux(audio=0)] if film.streams.audio else []
    return picture, heard


@pytest.fixture
def strike(
    media: dict[str, Path],
    known: dict[Any, Any],
    models: Callable[[str], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Cell, Path], ItemFailed | None]:
    """Runs a cell, checks what must hold in each, and gives the failure of the item that was struck."""
    monkeypatch.setattr(checkpoint, "SHARE", 1e9)  # keep one after every part

    def inputs(cell: Cell) -> list[Path]:
        """Each in a folder of its own; those of latents are named after what they are of."""
        kinds = ["image", "clip"]
        kinds.insert(cell.place, cell.kind)
        folder = tmp_path / "in"
        shutil.rmtree(folder, ignore_errors=True)
        found = []
        for number, kind in enumerate(kinds):
            source = media[kind]
            place = folder / str(number) / source.name
            place.parent.mkdir(parents=True)
            if cell.operation != "decode":
                shutil.copy2(source, place)
            else:
                key = (cell.model, kind)
                if key not in known:
                    known[key] = tmp_path.parent / f"latents {cell.model} {kind}"
                    job = Job("encode", (str(source),), output=str(known[key]))
                    assert run_job(job, lambda event: None, models(cell.model)).done == 1
                (made,) = known[key].iterdir()
                place = place.with_name(made.name)
                (shutil.copytree if made.is_dir() else shutil.copy2)(made, place)
            found.append(place)
        return found

    def outputs(cell: Cell, sources: list[Path], out: Path, fault: Callable[[Event], None]) -> list[Event]:
        events: list[Event] = []

        def on_event(event: Event) -> None:
            events.append(event)
            fault(event)

        job = Job(cell.operation, (str(tmp_path / "in"),), output=str(out), recursive=True, existing="skip")
        finished = run_job(job, on_event, models(cell.model))
        ended = [event for event in events if isinstance(event, (ItemDone, ItemFailed, ItemSkipped))]
        assert sorted(event.input for event in ended) == sources, "every item has its turn"
        assert finished.done + finished.failed + finished.skipped == 3
        return events

    def strike(cell: Cell, disk: Path) -> ItemFailed | None:
        sources = inputs(cell)
        key = cell.operation, cell.model, cell.kind, cell.place
        if key not in known:
            plain = outputs(cell, sources, tmp_path / "plain", lambda event: None)
            known[key] = {event.index: content(event.output) for event in plain if isinstance(event, ItemDone)}
            assert len(known[key]) == 3, [event for event in plain if isinstance(event, ItemFailed)]
            shutil.rmtree(tmp_path / "plain")
        out = disk / "out"
        shutil.rmtree(out, ignore_errors=True)
        victim, mine = sources[cell.place], out / str(cell.place)
        faults: dict[str, Callable[[], Fault]] = {
            "full": lambda: FullDisk(victim, disk, cell.number),
            "short": lambda: ShortFiles(victim, cell.number),
            "denied": lambda: Denied(victim, out, cell.number, not cell.lasting),
            "removed": lambda: Removed(victim, mine, cell.number, cell.lasting),
        }
        fault = faults[cell.fault]()
        with fault.watching(monkeypatch) if isinstance(fault, Denied) else nullcontext():
            try:
                events = outputs(cell, sources, out, fault)
            finally:
                fault.heal()
        failed = {event.input: event for event in events if isinstance(event, ItemFailed)}
        for event in failed.values():
            assert [path for path in (out / str(event.index)).glob("*") if not is_progress(path)] == []
            assert "cannot write" in event.error or "cannot create" in event.error, failed
            assert "\n" not in event.error
        assert [path for path in out.rglob(".tvae*") if path.suffix in (".tmp", ".lock")] == []
        made = {event.index: event for event in events if isinstance(event, ItemDone)}
        if failed:
            again = outputs(cell, sources, out, lambda _event: None)
            made |= {event.index: event for event in again if isinstance(event, ItemDone)}
        assert {index: content(event.output) for index, event in made.items()} == known[key]
        assert list(out.rglob(".*")) == []
        return failed.get(victim)

    return strike


POSIX = pytest.mark.skipif(os.name == "nt", reason="needs limits of processes")


LONG = [("long", "decode"), ("long", "roundtrip")]
EACH = list(product(KINDS, OPERATIONS))


@pytest.mark.parametrize(("kind", "operation"), slow_but([one for one in EACH if one not in LONG], EACH))
class TestOneItemFails:
    """Faults that no item survives, of the one in the middle."""

    @POSIX
    def test_no_room_at_all(self, strike: Run, operation: str, kind: str, tmp_path: Path) -> None:
        assert strike(Cell(operation, kind, "short", 1, 100), tmp_path)

    def test_a_full_disk(self, strike: Run, operation: str, kind: str, roomy: Path) -> None:
        assert strike(Cell(operation, kind, "full", 1, 0), roomy)

    def test_no_right_to_write(self, strike: Run, operation: str, kind: str, tmp_path: Path) -> None:
        assert strike(Cell(operation, kind, "denied", 1, 1), tmp_path)

    def test_the_folder_is_gone(self, strike: Run, operation: str, kind: str, tmp_path: Path) -> None:
        if kind == "image":
            assert strike(Cell(operation, kind, "removed", 1, 1), tmp_path)
        else:
            assert strike(Cell(operation, kind, "removed", 1, 3, lasting=False), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["image", "whole"])
@pytest.mark.parametrize("number", range(1, 41))
def test_rights_that_are_lost_at_any_time(strike: Run, number: int, model: str, tmp_path: Path) -> None:
    strike(Cell("encode", "clip", "denied", 1, number, model=model), tmp_path)


@pytest.mark.slow
@POSIX
@pytest.mark.parametrize("seed", range(400))
def test_sweep(strike: Run, request: pytest.FixtureRequest, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    fault = rng.choice(FAULTS)
    numbers = {
        "full": lambda: rng.randrange(60),
        "short": lambda: rng.choice((rng.randrange(3000), rng.randrange(100_000))),
        "denied": lambda: rng.choice((rng.randint(1, 12), rng.randint(1, 60))),
        "removed": lambda: rng.choice((rng.randint(1, 4), rng.randint(1, 140))),
    }
    cell = Cell(
        rng.choice(OPERATIONS),
        rng.choice(KINDS),
        fault,
        rng.randrange(3),
        numbers[fault](),
        rng.random() < 0.5,
        rng.choice(MODELS),
    )
    print(cell)
    disk = request.getfixturevalue("roomy") if fault == "full" else tmp_path
    strike(cell, disk)
