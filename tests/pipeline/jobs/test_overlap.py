"""Reading, computing and writing of different images happen at the same time, in bounded memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from working_threads import working_threads

from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, overlap
from tvae.pipeline.jobs.room import Room, Stopped

Run = Callable[..., Any]

NAP = 0.05
"""Seconds that a stage takes for an image in the tests that slow it down."""


@pytest.fixture
def photos(picture: Run) -> Callable[..., Path]:
    """A folder of so many images of one size."""

    def photos(count: int, width: int = 32, height: int = 16) -> Path:
        for number in range(count):
            source = picture(f"in/{number:03d}.png", width, height, seed=number)
        return source.parent

    return photos


def slowed(monkeypatch: pytest.MonkeyPatch, name: str, nap: Callable[[Any], None]) -> None:
    """The function of this name takes a nap first; it is told what the function is given first."""
    module, function = name.rsplit(".", 1)
    from importlib import import_module

    before = getattr(import_module(module), function)

    def slow(first: Any, /, *args: Any, **more: Any) -> Any:
        nap(first)
        return before(first, *args, **more)

    monkeypatch.setattr(name, slow)


class Together:
    """Naps, and how many of them, and of how many stages, there were at the same time. Other processes that are busy
    here change neither."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), list[str]()
        self.most = self.stages = 0

    def nap(self, stage: str) -> None:
        with self._lock:
            self._inside.append(stage)
            self.most, self.stages = max(self.most, len(self._inside)), max(self.stages, len({*self._inside}))
        time.sleep(NAP)
        with self._lock:
            self._inside.remove(stage)


def test_stages_overlap(run: Run, stand_in: Run, photos: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = Together()

    class Slow(type(stand_in())):  # type: ignore[misc]
        def encode(self, x: Any) -> Any:
            together.nap("compute")
            return super().encode(x)

    slowed(monkeypatch, "tvae.pipeline.jobs.reading.prepare", lambda _: together.nap("read"))
    slowed(monkeypatch, "tvae.pipeline.latents.image_file.write_tensors", lambda _: together.nap("write"))
    done, _ = run("encode", photos(20), output=tmp_path / "out", model=Slow(stand_in().info), batch=1)
    assert done.done == 20
    assert together.stages == 3


def test_a_slow_image_holds_up_no_other(run: Run, photos: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = threading.Event()

    def nap(path: Path) -> None:
        if path.name == "000.png":
            assert others.wait(20)

    slowed(monkeypatch, "tvae.pipeline.media.sandbox.open_here", nap)
    slowed(
        monkeypatch,
        "tvae.pipeline.latents.image_file.write_tensors",
        lambda path: others.set() if "011" in path.name else None,
    )
    done, events = run("encode", photos(12), output=tmp_path / "out")
    assert done.done == 12
    assert [event.index for event in events if isinstance(event, ItemDone)].index(0) > 5


def test_what_waits_is_bounded_by_bytes(
    run: Run, stand_in: Run, photos: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 40 images eight fit that wait, and no more are read while the first is computed."""
    read: list[int] = []
    monkeypatch.setattr(overlap, "room_bytes", lambda _vram: 4 * 32 * 16 * 8)
    slowed(monkeypatch, "tvae.pipeline.jobs.reading.prepare", lambda _: read.append(1))

    class Waiting(type(stand_in())):  # type: ignore[misc]
        most = 0

        def encode(self, x: Any) -> Any:
            time.sleep(0.05)
            self.most = max(self.most, len(read) - len([*(tmp_path / "out").glob("*.safetensors")]))
            return super().encode(x)

    model = Waiting(stand_in().info)
    done, _ = run("encode", photos(40), output=tmp_path / "out", model=model)
    assert done.done == 40
    assert 1 <= model.most <= 8


def test_few_are_read_before_the_first_result(
    run: Run, photos: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading many small files would hold up the first call, which shares the interpreter with them."""
    monkeypatch.setattr(overlap, "EARLY", 3)
    lock, read, before = threading.Lock(), list[Any](), list[int]()

    def counted(source: Any) -> None:
        with lock:
            read.append(source)

    def written(_: Any) -> None:
        with lock:
            before.append(len(read))
        time.sleep(NAP)

    slowed(monkeypatch, "tvae.pipeline.jobs.encode.describe", counted)
    slowed(monkeypatch, "tvae.pipeline.latents.image_file.write_tensors", written)
    folder = photos(20)
    assert run("encode", folder, output=tmp_path / "out")[0].done == 20
    assert before[0] <= 3 < before[-1]
    assert run("encode", folder, output=tmp_path / "out")[0].skipped == 20


def test_an_image_larger_than_all_room(run: Run, photos: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "room_bytes", lambda _vram: 10)
    assert run("encode", photos(5), output=tmp_path / "out")[0].done == 5


STAGES = ("jobs.reading.prepare", "jobs.compute.levels_to_device", "latents.image_file.write_tensors")


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_raises_costs_its_items(
    stage: str, run: Run, photos: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = [0]

    def raising(_first: Any) -> None:
        count[0] += 1
        if count[0] % 3 == 1:
            raise TypeError("ours")

    slowed(monkeypatch, f"tvae.pipeline.{stage}", raising)
    done, events = run("encode", photos(6), output=tmp_path / "out", batch=1)
    assert (done.done, done.failed) == (4, 2)
    errors = {event.error for event in events if isinstance(event, ItemFailed)}
    assert errors == {"internal error: TypeError: ours (-v shows where)"}
    assert len([*(tmp_path / "out").iterdir()]) == 4


@pytest.mark.parametrize("operation", ["encode", "decode", "roundtrip"])
def test_an_interruption_of_all_stages(operation: str, run: Run, stand_in: Run, photos: Run, tmp_path: Path) -> None:
    source = photos(30)
    if operation == "decode":
        run("encode", source, output=tmp_path / "latents")
        source = tmp_path / "latents"
    out = tmp_path / "out"

    class Interrupted(type(stand_in())):  # type: ignore[misc]
        def decode(self, z: Any) -> Any:
            return self._counted(super().decode(z))

        def encode(self, x: Any) -> Any:
            return self._counted(super().encode(x))

        def _counted(self, result: Any) -> Any:
            if len(self.shapes) > 12:
                while len([*out.glob("[!.]*")]) < 2:
                    time.sleep(0.01)
                raise KeyboardInterrupt
            return result

    with pytest.raises(KeyboardInterrupt):
        run(operation, source, output=out, model=Interrupted(stand_in().info), batch=1)
    assert not working_threads()
    left = {path.name: path.read_bytes() for path in out.iterdir()}
    assert not [name for name in left if name.startswith(".")]
    done, _ = run(operation, source, output=out)
    assert (done.done, done.skipped) == (30 - len(left), len(left))
    run(operation, source, output=tmp_path / "whole")
    assert {path.name for path in out.iterdir()} == {path.name for path in (tmp_path / "whole").iterdir()}


def test_who_listens_and_fails_ends_the_run(run: Run, photos: Run, stand_in: Run, tmp_path: Path) -> None:
    from tvae.pipeline.jobs import Job, run_job

    def on_event(event: Event) -> None:
        if isinstance(event, ItemDone):
            raise InputError("of the listener")

    with pytest.raises(InputError, match="of the listener"):
        run_job(Job("encode", (str(photos(9)),), output=str(tmp_path / "out")), on_event, model=stand_in())
    assert not working_threads()


def test_rooms_are_given_in_order() -> None:
    room, order = Room(10), list[int]()
    room.take(8)

    def ask(size: int) -> None:
        room.take(size)
        order.append(size)

    threads = []
    for size in (12, 1, 2):  # the large one is not passed by those that would fit
        threads.append(threading.Thread(target=ask, args=(size,)))
        threads[-1].start()
        time.sleep(0.05)
    assert order == []
    room.give(8)
    time.sleep(0.1)
    assert order == [12]
    room.give(12)
    for thread in threads:
        thread.join(5)
    assert order == [12, 1, 2]
    room.stop()
    with pytest.raises(Stopped):
        room.take(1)


def test_images_and_clips_in_one_run(run: Run, photos: Run, clip: Run, tmp_path: Path) -> None:
    done, events = run("encode", clip("a.mkv"), photos(6), clip("z.mkv"), output=tmp_path / "out")
    assert done.done == 8
    assert sorted(event.index for event in events if isinstance(event, ItemDone)) == [*range(8)]


def test_results_wait_for_a_slow_disk_together(
    run: Run, photos: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Together()
    slowed(monkeypatch, "tvae.pipeline.files.atomic.flush_file", lambda _: disk.nap("disk"))
    assert run("encode", photos(20), output=tmp_path / "out")[0].done == 20
    assert disk.most == 4, "threads that write"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is asked of the system in its own way")
def test_twenty_thousand_images_in_flat_memory(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "in").mkdir()
    Image.effect_noise((16, 16), 50).convert("RGB").save(tmp_path / "first.png")
    for number in range(20_000):
        os.link(tmp_path / "first.png", tmp_path / "in" / f"{number}.png")
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE.format(folder=str(Path(__file__).parent), place=str(tmp_path))],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, early, late = map(float, ran.stdout.split())
    assert seconds < 2, "until the first item has started"
    assert late < early * 1.05


MEASURE = """
import sys, time
sys.path.insert(0, {folder!r})
from conftest import StandIn, StandInInfo
from tvae.pipeline.jobs import ItemDone, ItemStarted, Job, run_job
begin, told, done = time.process_time(), [], 0  # other processes may be busy here
def held():
    return next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS"))
def on_event(event):
    global done
    if isinstance(event, ItemStarted) and not told:
        told.append(time.process_time() - begin)
    done += isinstance(event, ItemDone)
    if isinstance(event, ItemDone) and done in (2000, 20000):
        told.append(held())
run_job(Job("encode", ({place!r} + "/in",), output={place!r} + "/out"), on_event, model=StandIn(StandInInfo()))
print(*told)
"""
