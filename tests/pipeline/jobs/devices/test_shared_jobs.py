"""Jobs over several devices, whose processes are real ones: what is true of a job on one device stays true."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip
from stand_in import StandIn

from tvae.pipeline.errors import RankError, UnsupportedOp, UsageError
from tvae.pipeline.files.lock import one_writer
from tvae.pipeline.jobs import DeviceLost, Event, ItemDone, ItemFailed, Job, Notice, RunDone, RunStarted, run_job
from tvae.pipeline.jobs.busy import Load

Run = Callable[..., Any]
GRAMMAR = {
    "": ("item_started", "item_failed", "item_skipped"),
    "item_started": ("progress", "warning", "item_done", "item_failed"),
    "progress": ("progress", "warning", "item_done", "item_failed"),
    "warning": ("progress", "warning", "item_done", "item_failed"),
}
ENDS = ("item_done", "item_failed", "item_skipped")


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def in_order(events: Sequence[Event]) -> dict[int, str]:
    """How each item ended, by its index; checks that its events come in the order that is promised."""
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunDone)
    last: dict[int, str] = defaultdict(str)
    for event in events[1:-1]:
        told = event.to_json()
        if "index" in told:
            assert told["type"] in GRAMMAR[last[told["index"]]]
            last[told["index"]] = told["type"]
    assert set(last.values()) <= {*ENDS}
    return dict(last)


def on_one(operation: Any, *inputs: Path, output: Path) -> tuple[RunDone, list[Event]]:
    events: list[Event] = []
    job = Job(operation, tuple(map(str, inputs)), output=str(output), batch=1)
    return run_job(job, events.append, StandIn("builtin")), events  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_same_as_on_one_device(shared: Run, picture: Run, tmp_path: Path) -> None:
    """Pictures, a clip, a damaged file, and a picture that is called a clip."""
    for n in range(9):
        picture(f"in/{n}.png", width=16 + 8 * (n % 3), seed=n)
    write_clip(tmp_path / "in" / "4b.mkv", 5, sound=False)
    picture("in/picture.png", seed=99).rename(tmp_path / "in" / "5b.mkv")
    whole = (tmp_path / "in" / "3.png").read_bytes()
    (tmp_path / "in" / "2b.png").write_bytes(whole[: len(whole) // 2])
    done, events = shared("encode", tmp_path / "in", output=tmp_path / "two", batch=1)
    one, before = on_one("encode", tmp_path / "in", output=tmp_path / "one")
    assert content(tmp_path / "two") == content(tmp_path / "one")
    assert (done.done, done.skipped, done.failed) == (one.done, one.skipped, one.failed) == (11, 0, 1)
    assert in_order(events) == in_order(before)
    assert events[0] == RunStarted("encode", 12, "builtin", "float32", "cpu,cpu")
    (bad,) = (event for event in events if isinstance(event, ItemFailed))
    assert (bad.input.name, bad.index) == ("2b.png", 3)
    assert "2b.png" in bad.error
    assert done.stages is not None
    json.dumps([event.to_json() for event in events])


@pytest.mark.slow
def test_each_device_tells_how_busy_it_is(shared: Run, picture: Run, heard: list[Event], tmp_path: Path) -> None:
    """While the run goes on: a call sleeps 0.3 s."""
    for n in range(24):
        picture(f"in/{n:02d}.png", seed=n)
    loads: list[Load] = []

    class Hearing(list[Event]):
        def append(self, event: Event) -> None:
            heard.append(event)
            if isinstance(event, ItemDone) and isinstance(heard[0], RunStarted) and heard[0].load is not None:
                loads.append(heard[0].load())

    started = shared("encode", tmp_path / "in", output=tmp_path / "out", mode="slow", batch=1, to=Hearing())[1][0]
    assert {*loads[-1].devices} == {"cpu:0", "cpu:1"}
    assert all(1.0 < spent < 8.0 for spent in loads[-1].devices.values()), "of 3.6 s that each sleeps, as last told"
    assert loads[0].devices == {}
    assert all(before.threads <= after.threads for before, after in pairwise(loads))
    assert isinstance(started, RunStarted)
    assert started.load is not None
    assert sum(started.load().devices.values()) >= 24 * 0.3


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["decode", "roundtrip"])
def test_other_operations(operation: str, shared: Run, picture: Run, tmp_path: Path) -> None:
    for n in range(6):
        picture(f"in/{n}.png", width=16 + 8 * (n % 3), seed=n)
    write_clip(tmp_path / "in" / "4b.mkv", 5, sound=True)
    source = tmp_path / "in"
    if operation == "decode":
        on_one("encode", source, output=tmp_path / "latents")
        source = tmp_path / "latents"
    done, events = shared(operation, source, output=tmp_path / "two", batch=1)
    one, _ = on_one(operation, source, output=tmp_path / "one")
    pictures = {name: data for name, data in content(tmp_path / "one").items() if name.endswith(".png")}
    assert {name: data for name, data in content(tmp_path / "two").items() if name.endswith(".png")} == pictures
    assert {*content(tmp_path / "two")} == {*content(tmp_path / "one")}
    assert (done.done, done.failed) == (one.done, one.failed) == (7, 0)
    assert done.quality == pytest.approx(one.quality) if operation == "decode" else done.quality is not None
    assert {*in_order(events).values()} == {"item_done"}


@pytest.mark.slow
def test_again_skips_and_does_the_rest(shared: Run, picture: Run, tmp_path: Path) -> None:
    for n in range(7):
        picture(f"in/{n}.png", seed=n)
    shared("encode", tmp_path / "in", output=tmp_path / "out")
    first = content(tmp_path / "out")
    for name in ("1.png.safetensors", "4.png.safetensors"):
        (tmp_path / "out" / name).unlink()
    done, events = shared("encode", tmp_path / "in", output=tmp_path / "out")
    assert (done.done, done.skipped) == (2, 5)
    assert [index for index, end in sorted(in_order(events).items()) if end == "item_done"] == [1, 4]
    assert content(tmp_path / "out") == first


@pytest.mark.slow
def test_two_that_would_have_one_name(shared: Run, picture: Run, tmp_path: Path) -> None:
    """What the name did not tell: the run, and no single device, knows that another item has this output."""
    for n in range(4):
        picture(f"in/{n}.png", seed=n)
    picture("in/x.mkv.png", seed=8)
    picture("in/y.png", seed=9).rename(tmp_path / "in" / "x.mkv")
    done, events = shared("roundtrip", tmp_path / "in", output=tmp_path / "out")
    assert (done.done, done.failed) == (5, 1)
    (bad,) = (event for event in events if isinstance(event, ItemFailed))
    assert bad.input.name == "x.mkv"
    assert "would both be written to" in bad.error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "why"), [("dies", "SIGKILL"), ("hangs-up", "an illegal memory access was encountered")]
)
def test_a_device_that_is_lost(mode: str, why: str, shared: Run, picture: Run, tmp_path: Path) -> None:
    """What it was at work on fails, the other device does the rest, and the next run does what failed."""
    for n in range(20):
        picture(f"in/{n:02d}.png", width=64 if n == 3 else 32, seed=n)
    done, events = shared("encode", tmp_path / "in", output=tmp_path / "out", mode=mode, batch=1)
    (lost,) = (event for event in events if isinstance(event, DeviceLost))
    assert why in lost.error
    assert "\n" not in lost.error
    failed = [event for event in events if isinstance(event, ItemFailed)]
    assert 3 in {event.index for event in failed}
    assert all(lost.device in event.error and "run again" in event.error for event in failed)
    assert len(failed) < 8
    assert done.done + done.failed == 20
    assert sorted(in_order([event for event in events if event is not lost])) == [*range(20)]
    again, _ = shared("encode", tmp_path / "in", output=tmp_path / "out")
    assert (again.done + again.skipped, again.failed) == (20, 0)
    assert again.done <= done.failed


@pytest.mark.slow
def test_a_file_that_ends_whoever_reads_it_ends_one_device(shared: Run, picture: Run, tmp_path: Path) -> None:
    """The next one reads in another process what the lost one had at hand. Without that it would be lost, too."""
    for n in range(12):
        picture(f"in/{n:02d}.png", seed=n)
    picture("in/poison.png", seed=99).rename(tmp_path / "in" / "poison.png")
    done, events = shared("encode", tmp_path / "in", output=tmp_path / "out", mode="dies-reading", batch=1)
    (lost,) = (event for event in events if isinstance(event, DeviceLost))
    assert "SIGKILL" in lost.error
    ends = in_order([event for event in events if event is not lost])
    assert ends[12] == "item_done", "its decoder is not what is broken here"
    assert done.done + done.failed == 13
    done, events = shared(
        "encode", tmp_path / "in", output=tmp_path / "off", mode="dies-reading", batch=1, sandbox="off"
    )
    assert sum(isinstance(event, DeviceLost) for event in events) == 2
    assert in_order([event for event in events if not isinstance(event, DeviceLost)])[12] == "item_failed"


@pytest.mark.slow
def test_all_devices_are_lost(shared: Run, heard: list[Event], picture: Run, tmp_path: Path) -> None:
    for n in range(20):
        picture(f"in/{n:02d}.png", width=64, seed=n)
    with pytest.raises(RankError, match=r"no device is left, cpu:\d was the last \(.*SIGKILL\).*run again"):
        shared("encode", tmp_path / "in", output=tmp_path / "out", mode="dies", batch=1)
    assert not any(isinstance(event, (ItemDone, RunDone)) for event in heard)


@pytest.mark.slow
def test_what_is_wrong_with_the_request(shared: Run, heard: list[Event], picture: Run, tmp_path: Path) -> None:
    for n in range(4):
        picture(f"in/{n}.png", seed=n)
    with pytest.raises(UsageError, match=r"^cpu:\d: unknown dtype 'int3'"):
        shared("encode", tmp_path / "in", output=tmp_path / "out", dtype="int3")
    assert heard == []
    with pytest.raises(UnsupportedOp, match=r"aten\.fft") as refused:
        shared("encode", tmp_path / "in", output=tmp_path / "out", mode="unsupported")
    assert (refused.value.op, refused.value.module) == ("aten.fft", "encoder.mid")
    assert not (tmp_path / "out").exists() or content(tmp_path / "out") == {}


@pytest.mark.slow
def test_an_event_that_is_not_heard_ends_the_run(cpus: Run, picture: Run, tmp_path: Path) -> None:
    for n in range(12):
        picture(f"in/{n}.png", seed=n)
    started = cpus(2, "slow")

    def hear(event: Event) -> None:
        if isinstance(event, ItemDone):
            raise ZeroDivisionError("of the caller")

    with pytest.raises(ZeroDivisionError):
        run_job(Job("encode", (str(tmp_path / "in"),), output=str(tmp_path / "out"), devices="2", batch=1), hear)
    assert all(one._process.poll() is not None for one in started)
    assert 0 < len(content(tmp_path / "out")) < 12


def test_one_item_and_one_device_take_no_process(
    cpus: Run, picture: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tvae.pipeline.session.model.open_model", lambda name, **_: StandIn(name))
    for number, (count, inputs) in enumerate(((3, ["a"]), (1, ["a", "b"]))):
        started, events = cpus(count), list[Event]()
        sources = tuple(str(picture(f"{name}.png")) for name in inputs)
        done = run_job(
            Job("encode", sources, output=str(tmp_path / str(number)), devices="3", split="items"), events.append
        )
        assert done.done == len(inputs)
        assert started == []


def test_a_dry_run_takes_no_process(cpus: Run, picture: Run, tmp_path: Path) -> None:
    started = cpus(2)
    sources = tuple(str(picture(f"{name}.png")) for name in "ab")
    done = run_job(Job("encode", sources, output=str(tmp_path / "out"), devices="2", dry_run=True), lambda _: None)
    assert (done.planned, started) == (2, [])
    with pytest.raises(UsageError, match="computes where it is"):
        run_job(Job("encode", sources, devices="2"), lambda _: None, StandIn())  # type: ignore[arg-type]


@pytest.mark.slow
def test_another_run_holds_an_output(cpus: Run, tmp_path: Path) -> None:
    """A device waits for it, and the other does the rest."""
    (tmp_path / "in").mkdir()
    for name in "abc":
        write_clip(tmp_path / "in" / f"{name}.mkv", 3, sound=False)
    held = one_writer(tmp_path / "out" / "a.mkv.latents", 0)
    held.__enter__()
    cpus(2)
    events: list[Event] = []

    def hear(event: Event) -> None:
        events.append(event)
        if isinstance(event, ItemDone) and sum(isinstance(one, ItemDone) for one in events) == 2:
            held.__exit__(None, None, None)

    done = run_job(Job("encode", (str(tmp_path / "in"),), output=str(tmp_path / "out"), devices="2"), hear)
    assert done.done == 3
    assert [event.input.name for event in events if isinstance(event, ItemDone)][-1] == "a.mkv"
    assert any(isinstance(event, Notice) for event in events)
