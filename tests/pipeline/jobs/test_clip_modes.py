"""Which of the four ways a clip takes, for tiny models of every kind, and that the jobs go that way."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slow_but import slow_but
from tiny_vaes import TINY

from tvae import presets
from tvae.pipeline.jobs.clip_modes import ClipMode, passage, passages_there_and_back
from tvae.pipeline.latents import open_latents
from tvae.pipeline.models.calls import SIDES
from tvae.pipeline.session.model import open_model

Run = Callable[..., Any]

FRAMES, STEPS, DEMAND, WHOLE = ClipMode.FRAME_BY_FRAME, ClipMode.IN_STEPS, ClipMode.ON_DEMAND, ClipMode.WHOLE

CLIPS = {
    "AutoencoderKL": (FRAMES, FRAMES),
    "AutoencoderTiny": (FRAMES, FRAMES),
    "AutoencoderKLWan": (STEPS, STEPS),
    "AutoencoderKLCogVideoX": (STEPS, STEPS),
    "AutoencoderKLMochi": (WHOLE, STEPS),
    "AutoencoderKLLTXVideo": (DEMAND, DEMAND),
    "AutoencoderKLHunyuanVideo": (WHOLE, WHOLE),
    "AutoencoderKLAllegro": (WHOLE, WHOLE),
}
"""Into latents, and out of them."""
IMAGES = {
    "AutoencoderKL": (FRAMES, FRAMES),
    "AutoencoderKLWan": (WHOLE, STEPS),
    "AutoencoderKLMochi": (WHOLE, STEPS),
    "AutoencoderKLLTXVideo": (WHOLE, WHOLE),
}


def opened(class_name: str, folder: Path) -> Any:
    TINY[class_name].build().save_pretrained(folder)  # type: ignore[operator]
    return open_model(str(folder), device="cpu", dtype="float32")


@pytest.mark.parametrize("class_name", CLIPS)
def test_the_way_of_each_family(class_name: str, tmp_path: Path) -> None:
    model = opened(class_name, tmp_path)
    ways = tuple(passage(model, side, "video") for side in SIDES)
    assert tuple(way.mode for way in ways) == CLIPS[class_name]
    assert [way.stream is not None for way in ways] == [way.mode is STEPS for way in ways]
    assert [way.resumes for way in ways] == [way.mode in (FRAMES, STEPS) for way in ways]
    if class_name in IMAGES:
        assert tuple(passage(model, side, "image").mode for side in SIDES) == IMAGES[class_name]


class _Sided:
    """As much of a model as the choice asks for."""

    goes_by_frames = False

    class info:
        temporal_factor = 4

    def __init__(self, *sides: str) -> None:
        self.sides = sides

    def stream(self, side: str) -> Any:
        return object() if side in self.sides else None


@pytest.mark.parametrize(
    ("sides", "modes"),
    [
        (("encode", "decode"), (STEPS, STEPS)),
        (("decode",), (WHOLE, STEPS)),
        (("encode",), (WHOLE, WHOLE)),
        ((), (WHOLE, WHOLE)),
    ],
)
def test_there_and_back(sides: tuple[str, ...], modes: tuple[ClipMode, ClipMode]) -> None:
    model: Any = _Sided(*sides)
    assert tuple(way.mode for way in passages_there_and_back(model, "video")) == modes


ENCODED = {FRAMES: {1}, STEPS: {1, 4}, DEMAND: {5, 9}, WHOLE: {13}}
DECODED = {FRAMES: {1}, STEPS: {1}, DEMAND: {2, 3}, WHOLE: {4}}
"""Frames of the tensors that the stand-in computes, of a clip of 13 frames, 4 latent frames."""


def clip_lengths(model: Any, width: int) -> set[int]:
    """Of all that the stand-in computed: pixels are 32 wide, latents 4."""
    return {shape[2] if len(shape) == 5 else 1 for shape in model.shapes if shape[-1] == width}


@pytest.mark.parametrize("mode", ClipMode)
def test_jobs_go_that_way(mode: ClipMode, run: Run, clip: Run, model_of: Run, tmp_path: Path) -> None:
    source = clip(times=tuple(40 * n for n in range(13)))
    encoder, decoder, both = (model_of(mode) for _ in range(3))
    assert run("encode", source, output=tmp_path / "lat", model=encoder)[0].done == 1
    (folder,) = (tmp_path / "lat").iterdir()
    assert open_latents(folder).summary()["repeated"] == 0
    assert run("decode", tmp_path / "lat", output=tmp_path / "out", model=decoder)[0].done == 1
    assert run("roundtrip", source, output=tmp_path / "back", model=both)[0].done == 1
    assert clip_lengths(encoder, 32) == ENCODED[mode]
    assert clip_lengths(decoder, 4) == DECODED[mode]
    assert (clip_lengths(both, 32), clip_lengths(both, 4)) == (ENCODED[mode], DECODED[mode])


@pytest.mark.parametrize("mode", ClipMode)
@pytest.mark.parametrize("workers", slow_but([3], [0, 1, 3]))
def test_threads_are_those_of_the_preset(
    mode: ClipMode,
    workers: int,
    run: Run,
    clip: Run,
    model_of: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    preset, started = tmp_path / "own.toml", []
    text = presets.export("cpu")
    preset.write_text(re.sub(r"^io_workers = .*$", f"io_workers = {workers}", text, flags=re.MULTILINE), "utf-8")
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (started.append(thread.name), start(thread)))
    source, common = clip(times=tuple(40 * n for n in range(13))), {"preset": str(preset)}
    assert run("encode", source, output=tmp_path / "lat", model=model_of(mode), **common)[0].done == 1
    assert run("decode", tmp_path / "lat", output=tmp_path / "out", model=model_of(mode), **common)[0].done == 1
    assert run("roundtrip", source, output=tmp_path / "back", model=model_of(mode), **common)[0].done == 1
    of_frames = {"tvae-read", "tvae-write"}
    of_items = {f"tvae-{work}-item" for work in ("read", "write", "open", "finish")}
    assert {name for name in started if name.startswith("tvae-")} == (of_frames | of_items if workers else set())
