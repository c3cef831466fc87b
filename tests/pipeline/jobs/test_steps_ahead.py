"""A device has the next step of a clip before the results of one are written, and each step's own are looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tvae.pipeline.jobs import Event, ItemFailed, Job, Progress, run_job
from tvae.pipeline.jobs.compute import encode_step
from tvae.pipeline.jobs.pictures import Results
from tvae.pipeline.media import frames_to_tensor

Run = Callable[..., Any]


@pytest.mark.parametrize("ahead", [True, False], ids=["on a GPU", "on a CPU"])
@pytest.mark.parametrize("side", ["encode", "decode"])
def test_the_next_step_begins_first(
    run: Run, clip: Run, stand_in: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str, ahead: bool
) -> None:
    source, said = clip("c.mkv", times=tuple(range(0, 17 * 40, 40))), list[str]()
    model = stand_in(True, temporal_factor=4)
    if side == "decode":
        run("encode", source, output=tmp_path / "lat", model=model)
        source = tmp_path / "lat" / "c.mkv.latents"
    stream_of = model.stream

    def told(side: str) -> Any:
        stream = stream_of(side)
        step = stream.step

        def begin(*given: Any) -> Any:
            said.append("step")
            return step(*given)

        stream.step = begin
        return stream

    def heard(event: Event) -> None:
        if isinstance(event, Progress):
            said.append("results")

    monkeypatch.setattr(model, "stream", told)
    monkeypatch.setattr(Results, "on_its_way", ahead)
    done = run_job(Job(side, (str(source),), output=str(tmp_path / "out")), heard, model=model)
    assert done.done == 1
    together = ["step", "results"] * 5
    assert said == (["step", *["step", "results"] * 4, "results"] if ahead else together)


@pytest.mark.parametrize("ahead", [True, False], ids=["on a GPU", "on a CPU"])
@pytest.mark.parametrize("kind", ["image", "steps"])
def test_the_next_step_of_a_roundtrip_begins_first(
    clip: Run, stand_in: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, ahead: bool
) -> None:
    """Both sides of it. An image VAE has a step for each frame."""
    times = tuple(range(0, (17 if kind == "steps" else 5) * 40, 40))
    source, said = clip("c.mkv", times=times), list[str]()
    model = stand_in(kind == "steps", temporal_factor=4 if kind == "steps" else None)

    def noted(name: str, call: Any) -> Any:
        def begin(*given: Any) -> Any:
            said.append(name)
            return call(*given)

        return begin

    def told(side: str) -> Any:
        stream = stream_of(side)
        if stream is not None:
            stream.step = noted(side, stream.step)
        return stream

    stream_of = model.stream
    monkeypatch.setattr(model, "stream", told)
    if kind == "image":
        monkeypatch.setattr(model, "encode", noted("encode", model.encode))
        monkeypatch.setattr(model, "decode", noted("decode", model.decode))

    def heard(event: Event) -> None:
        if isinstance(event, Progress) and said[-1] != "results":
            said.append("results")

    monkeypatch.setattr(Results, "on_its_way", ahead)
    done = run_job(Job("roundtrip", (str(source),), output=str(tmp_path / "out.mkv")), heard, model=model)
    assert done.done == 1
    step = ["encode", "decode"]
    assert said == ([*step, *[*step, "results"] * 4] if ahead else [*step, "results"] * 5)


@pytest.mark.parametrize("ahead", [True, False], ids=["on a GPU", "on a CPU"])
def test_a_step_that_is_not_finite_is_no_frame(
    run: Run, clip: Run, stand_in: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    """One value of one frame."""
    source, model = clip("c.mkv", times=tuple(range(0, 17 * 40, 40))), stand_in(True, temporal_factor=4)
    run("encode", source, output=tmp_path / "lat", model=model)
    stream_of = model.stream

    def damaged(side: str) -> Any:
        stream = stream_of(side)
        step = stream.step

        def begin(*given: Any) -> Any:
            found = step(*given)
            if len(model.shapes) == 3:
                found[0, 1, 2, 3, 4] = float("inf")
            return found

        stream.step = begin
        return stream

    model.shapes.clear()
    monkeypatch.setattr(model, "stream", damaged)
    monkeypatch.setattr(Results, "on_its_way", ahead)
    done, events = run("decode", tmp_path / "lat" / "c.mkv.latents", output=tmp_path / "out", model=model)
    assert (done.done, done.failed) == (0, 1)
    (failed,) = [event for event in events if isinstance(event, ItemFailed)]
    assert "NaN or infinite" in failed.error
    assert not [*(tmp_path / "out").glob("*.mp4")]


def test_a_step_is_given_its_frames_in_order(stand_in: Run) -> None:
    rng, given = np.random.default_rng(0), list[torch.Tensor]()
    frames = [rng.integers(0, 256, (8, 12, 3), dtype=np.uint8) for _ in range(3)]

    class Stream:
        def step(self, pixels: torch.Tensor) -> torch.Tensor:
            given.append(pixels)
            return torch.cat([pixels, pixels], 1)

    stream: Any = Stream()
    (kept,) = encode_step(stream, frames, stand_in(), "mean", "raw", torch.Generator())
    assert torch.equal(given[0], frames_to_tensor(frames).transpose(0, 1).unsqueeze(0))
    assert torch.equal(kept, given[0])
