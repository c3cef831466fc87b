"""Several processes on one device: when there are, and what is done however many of them there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from PIL import Image
from stand_in import StandIn

from tvae.pipeline.caches import Buckets, CacheRequest
from tvae.pipeline.errors import RankError
from tvae.pipeline.jobs import DeviceLost, Event, Job, RunDone, RunStarted, run_job
from tvae.pipeline.jobs.devices import run, small
from tvae.pipeline.jobs.devices.small import by_processes
from tvae.pipeline.jobs.listing import listing
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.vaes import Vaes
from tvae.pipeline.session.model import open_model

Run = Callable[..., Any]


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two H100, 16 cores; 20 pictures are many, and three are looked at."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: pytest.fail("a device is touched"))
    monkeypatch.setattr(small, "usable_cores", lambda: 16)
    monkeypatch.setattr(small, "MANY", 20)
    monkeypatch.setattr(small, "LOOKED_AT", 3)
    monkeypatch.setattr(small, "start_more", lambda _count: None)


@pytest.fixture
def early(hopper: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Processes that start before PyTorch is asked for devices; the driver has the two."""
    found: list[int] = []
    monkeypatch.setattr(small, "start_more", found.append)
    monkeypatch.setattr(small, "capability_of", {"cuda": (9, 0), "cuda:0": (9, 0), "cuda:1": (9, 0)}.get)
    return found


def photos(folder: Path, count: int = 40, size: tuple[int, int] = (64, 32), suffix: str = "jpg") -> Path:
    folder.mkdir()
    for n in range(count):
        Image.new("RGB", size, (n, 0, 0)).save(folder / f"{n:02d}.{suffix}")
    return folder


def processes(folder: Path, several: tuple[str, ...] = (), **fields: Any) -> list[str]:
    job = Job("encode", (str(folder),), output=str(folder.parent / "out"), **fields)
    return by_processes(job, listing(job, Vaes(job)).items, several)


@pytest.mark.parametrize(
    "fields",
    [{}, {"device": "cuda"}, {"device": "cuda:1"}, {"preset": "h200"}, {"size": (640, 640)}, {"batch": 1}],
)
def test_many_small_pictures(hopper: None, tmp_path: Path, fields: dict[str, Any]) -> None:
    device = "cuda:1" if fields.get("device") == "cuda:1" else "cuda:0"
    assert processes(photos(tmp_path / "in"), **fields) == [device, device]


@pytest.mark.parametrize(
    "fields",
    [
        *({"device": "cpu"}, {"device": "cuda:2"}, {"device": "cuda:x"}, {"device": "mps"}, {"preset": "rtx50"}),
        *({"preset": "none"}, {"vram": "8GiB"}, {"claim": True}, {"sandbox": "on"}),
        *({"size": (1024, 512)}, {"dry_run": True}),
    ],
)
def test_where_one_process_computes(hopper: None, tmp_path: Path, fields: dict[str, Any]) -> None:
    assert processes(photos(tmp_path / "in"), **fields) == []


def test_few_pictures_large_ones_and_clips(hopper: None, tmp_path: Path) -> None:
    assert processes(photos(tmp_path / "few", 19)) == []
    assert processes(photos(tmp_path / "large", size=(1024, 512))) == []
    assert processes(photos(tmp_path / "resized", size=(1024, 512)), size=(512, 512)) == ["cuda:0"] * 2
    assert processes(photos(tmp_path / "clips", suffix="gif")) == []
    broken = photos(tmp_path / "broken")
    for path in broken.iterdir():
        path.write_bytes(path.read_bytes()[:10])
    assert processes(broken) == []


def test_several_devices(hopper: None, tmp_path: Path) -> None:
    both = ("cuda:0", "cuda:1")
    folder = photos(tmp_path / "in")
    assert processes(folder, both, devices="2") == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
    assert processes(folder, both, devices="2", split="rows") == [*both]
    assert processes(photos(tmp_path / "few", 39), both, devices="2") == [*both]
    assert processes(folder, ("cpu", "cuda:1"), devices="cpu,cuda:1") == ["cpu", "cuda:1", "cuda:1"]


def test_they_start_before_pytorch_is_asked(early: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, seen = photos(tmp_path / "in"), list[list[int]]()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: seen.append([*early]) or (9, 0))
    assert processes(folder) == ["cuda:0"] * 2
    assert processes(folder, device="cuda") == ["cuda:0"] * 2
    assert seen == [[2], [2, 2]]
    assert processes(folder, ("cuda:0", "cuda:1"), devices="2") == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
    assert processes(folder, ("cpu", "cuda:1"), devices="cpu,cuda:1") == ["cpu", "cuda:1", "cuda:1"]
    assert early == [2, 2, 2, 1], "one of each device that is named is there already"


def test_none_starts_where_none_is_wanted(early: list[int], tmp_path: Path) -> None:
    folder = photos(tmp_path / "in")
    for fields in ({"device": "cpu"}, {"device": "cuda:7"}, {"preset": "rtx50"}, {"preset": "none"}):
        processes(folder, **fields)
    assert early == [0] * 4
    processes(folder, vram="8GiB")
    processes(photos(tmp_path / "few", 19))
    processes(photos(tmp_path / "large", size=(1024, 512)))
    assert early == [0] * 4


def test_a_driver_that_fails(hopper: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever computes tells of it."""

    def fails(_device: object) -> None:
        raise RuntimeError("CUDA unknown error")

    monkeypatch.setattr(torch.cuda, "get_device_capability", fails)
    assert processes(photos(tmp_path / "in")) == []


def test_few_cores(hopper: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "usable_cores", lambda: 7)
    assert processes(photos(tmp_path / "in")) == []


def test_a_cache(hopper: None, tmp_path: Path) -> None:
    request = CacheRequest("musubi", "wan", Buckets(False))
    job = Job("cache", (str(photos(tmp_path / "in")),), output=str(tmp_path), cache=request, vae="none", size=(64, 64))
    item = SimpleNamespace(kinds={"image"}, member=None, source=None, output=lambda _kind: tmp_path / "nothing")
    assert by_processes(job, cast("list[Item]", [item] * 20), ()) == ["cuda:0"] * 2


def test_pictures_that_are_done_do_not_count(hopper: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes were started, for seconds, to find 2000 results there."""
    monkeypatch.setattr(small, "ASKED_FOR", 20)
    folder, out = photos(tmp_path / "in"), tmp_path / "out"
    out.mkdir()
    names = [f"{n:02d}.jpg.safetensors" for n in range(40)]
    for name in names[:20]:
        (out / name).touch()
    assert processes(folder) == ["cuda:0"] * 2, "20 are left"
    for name in names[20:22]:
        (out / name).touch()
    assert processes(folder) == []
    assert processes(folder, existing="overwrite") == ["cuda:0"] * 2


def test_what_is_in_archives_is_not_looked_at(hopper: None) -> None:
    job = Job("encode", ("in.tar",), output="out", size=(64, 64))
    items = cast("list[Item]", [SimpleNamespace(kinds={"image"}, member=object(), source=None)] * 20)
    assert by_processes(job, items, ()) == []


def test_each_is_told_how_many_share_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job] = []

    def started(_number: int, _device: str, job: Job, *_: object) -> SimpleNamespace:
        jobs.append(job)
        return SimpleNamespace(dismiss=lambda: None, wait=lambda: None)

    monkeypatch.setattr(run, "DeviceProcess", started)
    with run.processes_of(Job("encode", ("in",)), ["cpu:0", "cpu:0", "cpu:1"], Queue()):
        assert [(job.device, job.sharers) for job in jobs] == [("cpu:0", 2), ("cpu:0", 2), ("cpu:1", 1)]


def test_each_plans_with_its_part() -> None:
    whole, part = (open_model("builtin", device="cpu", sharers=sharers) for sharers in (1, 2))
    assert part.limits.share == whole.limits.share / 2


@pytest.fixture
def together(cpus: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Encodes a folder by two processes on one CPU; mode: see ``device_worker``."""

    def run(folder: Path, mode: str = "as-it-is", names: tuple[str, ...] = ("cpu:0", "cpu:0")) -> list[Event]:
        started = cpus(len(names), mode)
        monkeypatch.setattr("tvae.pipeline.jobs.run.by_processes", lambda *_: [*names])
        monkeypatch.setenv("TVAE_TEST_TAKEN", str(tmp_path / "taken"))
        events: list[Event] = []
        try:
            run_job(Job("encode", (str(folder),), output=str(tmp_path / "out"), batch=1), events.append)
        finally:
            assert len(started) == len(names)
            assert all(process._process.poll() is not None for process in started)
        return events

    return run


def done(events: list[Event]) -> RunDone:
    last = events[-1]
    assert isinstance(last, RunDone)
    return last


@pytest.mark.long
@pytest.mark.parametrize("mode", ["as-it-is", "for-one"])
def test_the_same_files(mode: str, together: Run, tmp_path: Path) -> None:
    """Also where the device is for one process only."""
    folder = photos(tmp_path / "in")
    events = together(folder, mode)
    started = events[0]
    assert isinstance(started, RunStarted)
    assert (started.items, started.device) == (40, "cpu")
    assert (done(events).done, done(events).failed) == (40, 0)
    assert not any(isinstance(event, DeviceLost) for event in events)
    job = Job("encode", (str(folder),), output=str(tmp_path / "alone"), batch=1)
    run_job(job, lambda _event: None, StandIn("builtin"))  # type: ignore[arg-type]
    for path in (tmp_path / "alone").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.long
def test_a_device_that_nobody_can_use(together: Run, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"cpu:0: .*busy or unavailable"):
        together(photos(tmp_path / "in"), "for-nobody")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_one_of_two_devices_that_nobody_can_use(together: Run, tmp_path: Path) -> None:
    """It was asked for: the run does not begin without it."""
    with pytest.raises(RuntimeError, match=r"cpu:\d: .*busy or unavailable"):
        together(photos(tmp_path / "in"), "for-one", ("cpu:0", "cpu:0", "cpu:1"))


@pytest.mark.slow
def test_a_process_that_dies(together: Run, tmp_path: Path) -> None:
    folder = photos(tmp_path / "in")
    Image.new("RGB", (64, 64)).resize((64, 32)).save(folder / "20.jpg")
    for path in folder.iterdir():
        if path.name != "20.jpg":
            Image.open(path).resize((32, 32)).save(path)
    events = together(folder, "dies")
    (lost,) = (event for event in events if isinstance(event, DeviceLost))
    assert lost.device == "cpu:0"
    assert done(events).done + done(events).failed == 40
    assert done(events).failed < 20  # what it had taken, not all that were for it


@pytest.mark.slow
def test_both_die(together: Run, tmp_path: Path) -> None:
    with pytest.raises(RankError, match="no device is left"):
        together(photos(tmp_path / "in", size=(64, 32)), "dies")
