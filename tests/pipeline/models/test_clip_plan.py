"""The plan of a clip in steps: what a stream then does, and what a person reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from live_bytes import LiveBytes
from tiny_vaes import TINY, waves

from tvae.pipeline.engine.plan.report import Plan
from tvae.pipeline.session.clip_plan import ClipPlan
from tvae.pipeline.session.model import Model, open_model

MOCHI = "AutoencoderKLMochi"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mochi") / "vae"
    TINY[MOCHI].build().save_pretrained(path)  # type: ignore[operator]
    return path


def opened(folder: Path) -> Model:
    return open_model(str(folder), device="cpu", dtype="float32", strip=2)


def planned(model: Model, frames: int) -> ClipPlan:
    found = model.plan((1, 4, frames, 6, 4), "decode")
    assert isinstance(found, ClipPlan)
    return found


@pytest.mark.slow
def test_steps_are_those_of_the_stream(folder: Path) -> None:
    model = opened(folder)
    plan, stream = planned(model, 5), model.stream("decode")
    assert stream is not None
    z = waves((1, 4, 5, 6, 4))
    made = [stream.step(chunk) for chunk in z.split([1] * 5, 2)]
    assert [(s.frames, s.count) for s in plan.steps] == [(1, 1), (1, 4)]
    assert [s.plan.output_shape for s in plan.steps] == [made[0].shape, made[1].shape]
    assert (plan.caches, plan.cache_bytes) == (len(stream.caches), sum(c.nbytes for c in stream.caches))


@pytest.mark.long
def test_predicted_peaks_are_what_steps_hold(folder: Path) -> None:
    """Weights and caches included, those that come in and those that go out."""
    model = opened(folder)
    plan, stream = planned(model, 4), model.stream("decode")
    assert stream is not None
    chunks = waves((1, 4, 2, 6, 4)).split(1, 2)
    for chunk in chunks:
        stream.step(chunk)  # weights are prepared on the way
    stream = model.stream("decode")
    assert stream is not None
    for chunk, step in zip(chunks, plan.steps, strict=True):
        with LiveBytes() as live:
            stream.step(chunk)
        predicted = step.plan.peak_bytes + step.plan.weight_bytes
        assert 0.9 * predicted < live.peak < 1.02 * predicted  # beside them, what depends on weights alone


@pytest.mark.long
def test_a_longer_clip_is_more_work_and_no_more_memory(folder: Path) -> None:
    model = opened(folder)
    short, long, image = planned(model, 3), planned(model, 103), planned(model, 1)
    assert long.peak_bytes == short.peak_bytes > image.peak_bytes
    assert long.first_work == short.first_work == image.first_work == image.work
    first, later = (s.plan.work for s in short.steps)
    assert short.work == first + 2 * later
    assert long.work == first + 102 * later


@pytest.mark.long
def test_a_person_reads_steps_caches_and_latency(folder: Path) -> None:
    text = str(planned(opened(folder), 5))
    assert text.startswith("decode 1x4x5x6x4 in 5 steps: 1 latent frame, then 1 latent frame 4 times\n")
    assert "\nfirst step, 1 latent frame:\n  decode 1x4x1x6x4 -> 1x3x1x48x32" in text
    assert "\nevery later step, 1 latent frame:\n  decode 1x4x1x6x4 -> 1x3x6x48x32" in text
    *_, peak, work = text.splitlines()
    assert peak.startswith("predicted peak of activations in any step ")
    assert peak.endswith(" among them")
    assert ", 10 caches of " in peak
    assert work.endswith(" GFLOP of it before the first result")


@pytest.mark.long
def test_a_program_reads_the_same(folder: Path) -> None:
    plan = planned(opened(folder), 5)
    found = json.loads(json.dumps(plan.to_json()))
    assert found["side"] == "decode"
    assert found["input_shape"] == [1, 4, 5, 6, 4]
    assert [(s["frames"], s["count"]) for s in found["steps"]] == [(1, 1), (1, 4)]
    assert [s["work"] for s in found["steps"]] == [s.plan.work for s in plan.steps]
    assert all(s["segments"] for s in found["steps"])
    for name in ("caches", "cache_bytes", "peak_bytes", "work", "first_work"):
        assert found[name] == getattr(plan, name)


@pytest.mark.slow
def test_the_side_without_steps_is_planned_whole(folder: Path) -> None:
    assert isinstance(opened(folder).plan((1, 3, 1, 32, 32), "encode"), Plan)
    with torch.no_grad():
        assert isinstance(open_model("builtin", device="cpu").plan((1, 16, 8, 8), "decode"), Plan)
