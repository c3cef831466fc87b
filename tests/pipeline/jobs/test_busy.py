"""How busy the stages of a run are, and which one is the limit."""

from __future__ import annotations

import pkgutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cache_vaes import saved
from clips import write_clip
from slow_but import slow_but
from stand_in import StandIn

from tvae.pipeline.caches import CacheRequest
from tvae.pipeline.jobs import Job, RunDone, RunStarted, run_job
from tvae.pipeline.jobs.busy import Busy, Load, bottleneck
from tvae.pipeline.jobs.clip_modes import ClipMode

Run = Callable[..., Any]

NOTHING = Busy(1).load()
SLOW = {
    "read": "tvae.pipeline.jobs.reading.prepare",
    "compute": "tvae.pipeline.jobs.compute.levels_to_device",
    "write": "tvae.pipeline.latents.image_file.write_tensors",
}


@pytest.mark.parametrize("stage", slow_but(["compute"], SLOW))
def test_the_slow_stage_is_the_bottleneck(
    stage: str, run: Run, picture: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import import_module

    module, _, name = SLOW[stage].rpartition(".")
    before = getattr(import_module(module), name)

    def slow(*args: Any, **more: Any) -> Any:
        time.sleep(0.02 if stage == "compute" else 0.1)
        return before(*args, **more)

    monkeypatch.setattr(SLOW[stage], slow)
    sources = [picture(f"in/{n}.png", seed=n) for n in range(32)]
    done, _ = run("encode", *sources, output=tmp_path / "out", batch=1)
    assert isinstance(done, RunDone)
    assert done.failed == 0
    assert max(done.stages, key=lambda name: done.stages[name]) == stage
    assert 0.6 < done.stages[stage] <= 1
    assert done.to_json()["stages"] == done.stages


def test_what_is_said_of_it() -> None:
    busy = Busy(4)
    busy.add("read", 4.0)
    busy.add("compute", 9.5)
    shares = busy.shares(10.0)
    assert shares == {"read": 0.1, "compute": 0.95, "write": 0.0}
    assert bottleneck(shares) == "bottleneck: computing (busy: reading 10 %, computing 95 %, writing 0 %)"
    assert bottleneck({**shares, "compute": 0.3}).startswith("bottleneck: none of the stages")


def test_other_processes() -> None:
    """Each tells sums, again and again; what a lost one did does not count."""
    busy = Busy(0)
    busy.told("first", "cuda:0", 4, {"read": 1.0, "compute": 2.0, "write": 0.5, "clip": 1.0, "clip write": 0.25})
    busy.told("second", "cuda:1", 2, {"compute": 1.0})
    busy.told("second", "cuda:1", 2, {"read": 5.0, "compute": 4.0, "write": 0.1})
    assert busy.threads == 6
    stages, clips = {"read": 6.0, "compute": 6.0, "write": 0.6}, {"read": 0.0, "compute": 1.0, "write": 0.25}
    assert busy.load() == Load({"cuda:0": 3.0, "cuda:1": 4.0}, stages, 6, clips)
    assert busy.shares(10.0) == {"read": 0.1, "compute": 0.35, "write": 0.013}
    busy.forget("second")
    assert busy.load() == Load({"cuda:0": 3.0}, {"read": 1.0, "compute": 2.0, "write": 0.5}, 4, clips)
    assert busy.shares(0.0) == {"read": 0.0, "compute": 0.0, "write": 0.0}


def test_since_an_earlier_look() -> None:
    busy = Busy(2, "cpu")
    busy.add("compute", 100.0)
    busy.told("other", "cuda:0", 2, {"compute": 50.0})
    before = busy.load()
    busy.add("compute", 1.0)
    busy.add("clip", 0.5)
    busy.add("read", 6.0)
    busy.told("other", "cuda:0", 2, {"compute": 52.0, "write": 2.0})
    assert busy.load().busy_since(before, 2.0) == {"cpu": 0.75, "cuda:0": 1.0}
    assert busy.load().stages_since(before, 2.0) == {"read": 0.75, "compute": 0.875, "write": 0.25}
    busy.add("clip read", 1.2)
    busy.add("clip write", 1.2)
    shares = busy.load().stages_since(before, 2.0)
    assert shares == {"read": 0.75, "compute": 0.875, "write": 0.3}, "two devices, a clip each"
    busy.forget("other")
    assert busy.load().stages_since(before, 2.0)["compute"] == 0.0, "not less than nothing"


def test_a_run_tells_it_while_it_goes_on(picture: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tvae.pipeline.jobs import compute

    before, seen = compute.levels_to_device, []

    def slow(*args: Any) -> Any:
        time.sleep(0.05)
        seen.append(load())
        return before(*args)

    def load() -> Load:
        return next(event for event in heard if isinstance(event, RunStarted)).load()

    monkeypatch.setattr(compute, "levels_to_device", slow)
    sources = [picture(f"in/{n}.png", seed=n) for n in range(8)]
    heard: list[Any] = []
    begin = time.monotonic()
    done = run_job(
        Job("encode", tuple(map(str, sources)), output=str(tmp_path / "out"), batch=1), heard.append, StandIn("builtin")
    )
    spent = [found.devices["cpu"] for found in seen]
    assert spent == sorted(spent)
    assert spent[0] == 0.0
    assert 0.05 * 5 <= spent[-1] <= time.monotonic() - begin
    assert done.stages is not None
    assert "load" not in heard[0].to_json()


@pytest.mark.parametrize("mode", ClipMode)
def test_clips_are_work_of_every_stage(mode: ClipMode, run: Run, model_of: Run, tmp_path: Path) -> None:
    write_clip(tmp_path / "clip.mkv", 5, sound=False)
    latents = tmp_path / "out" / "clip.mkv.latents"
    for operation, source in (("encode", tmp_path / "clip.mkv"), ("decode", latents), ("roundtrip", latents.parent)):
        if operation == "roundtrip":
            source = tmp_path / "clip.mkv"
        done, events = run(operation, source, output=tmp_path / "out", model=model_of(mode))
        (load,) = (event.load() for event in events if isinstance(event, RunStarted))
        assert done.done == 1
        assert load.devices["cpu"] == load.clips["compute"]
        assert all(seconds > 0 for seconds in load.clips.values()), (operation, load.clips)
        assert (load.stages["compute"], load.stages["write"]) == (0.0, 0.0)
        assert all(0 < share <= 1 for share in load.stages_since(NOTHING, done.seconds).values())


SLOW_IN_CLIPS = {
    ("encode", "read"): "tvae.pipeline.jobs.reading.prepare",
    ("roundtrip", "read"): "tvae.pipeline.jobs.reading.prepare",
    ("roundtrip", "write"): "tvae.pipeline.media.frame_encoder.FrameEncoder.encode",
    ("decode", "write"): "tvae.pipeline.media.frame_encoder.FrameEncoder.encode",
    ("encode", "compute"): {
        ClipMode.FRAME_BY_FRAME: "tvae.pipeline.jobs.compute.levels_to_device",
        ClipMode.IN_STEPS: "tvae.pipeline.jobs.compute.levels_to_device",
        ClipMode.ON_DEMAND: "tvae.pipeline.jobs.on_demand.frames_to_tensor",
        ClipMode.WHOLE: "tvae.pipeline.jobs.compute.frames_to_tensor",
    },
}


@pytest.mark.long
@pytest.mark.parametrize("mode", slow_but([ClipMode.IN_STEPS], ClipMode))
@pytest.mark.parametrize(("operation", "stage"), SLOW_IN_CLIPS)
def test_the_slow_stage_of_a_clip_is_the_bottleneck(
    operation: str, stage: str, mode: ClipMode, run: Run, model_of: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 13 frames, 50 ms each; the whole clip at once takes as long."""
    write_clip(tmp_path / "clip.mkv", 13, sound=False)
    source = tmp_path / "clip.mkv"
    if operation == "decode":
        assert run("encode", source, output=tmp_path / "lat", model=model_of(mode))[0].done == 1
        source = tmp_path / "lat" / "clip.mkv.latents"
    place = SLOW_IN_CLIPS[operation, stage]
    target = place if isinstance(place, str) else place[mode]
    before = pkgutil.resolve_name(target)

    def slow(*args: Any, **more: Any) -> Any:
        time.sleep(0.65 if (stage, mode) == ("compute", ClipMode.WHOLE) else 0.05)
        return before(*args, **more)

    monkeypatch.setattr(target, slow)
    done, _ = run(operation, source, output=tmp_path / "out", model=model_of(mode))
    assert done.done == 1
    assert max(done.stages, key=lambda name: done.stages[name]) == stage, done.stages
    assert done.stages[stage] > 0.3


@pytest.mark.long
def test_clips_of_caches_are_work_of_every_stage(tmp_path: Path) -> None:
    saved("wan", tmp_path / "vae")
    write_clip(tmp_path / "clip.mkv", 11, sound=False, side=64)
    events: list[Any] = []
    request = CacheRequest("musubi", "wan", posterior="mean", frames=(5,), stride=(5,))
    options = {"vae": str(tmp_path / "vae"), "cache": request, "size": (64, 64), "output": str(tmp_path / "out")}
    job = Job("cache", (str(tmp_path / "clip.mkv"),), device="cpu", dtype="float32", **options)
    done = run_job(job, events.append)
    (load,) = (event.load() for event in events if isinstance(event, RunStarted))
    assert done.done == 1
    assert all(seconds > 0 for seconds in load.clips.values())
    assert load.devices == {"cpu": load.clips["compute"]}


def test_without_threads_there_is_none(run: Run, picture: Run, tmp_path: Path) -> None:
    done, _ = run("encode", picture(), output=tmp_path / "out")
    assert done.stages is not None
    skipped, _ = run("encode", picture(), output=tmp_path / "out", existing="keep", dry_run=True)
    assert skipped.stages is None
