"""Frames of a clip through an image VAE: a call ahead on a GPU, in order, each with its own noise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from gpu_clock import Clock
from torch import Tensor

from tvae.pipeline.errors import InputError, OutOfMemory
from tvae.pipeline.jobs import clip_calls
from tvae.pipeline.jobs.busy import Busy
from tvae.pipeline.jobs.clip_calls import decoded_frames, encoded_frames
from tvae.pipeline.jobs.compute import encode_frame
from tvae.pipeline.media import PixelRows
from tvae.pipeline.session.model import open_model


def context(**job: Any) -> Any:
    return cast(Any, SimpleNamespace(busy=Busy(1), job=SimpleNamespace(**job)))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model on a GPU whose results are on the CPU."""
    monkeypatch.setattr(torch.cuda, "Event", Clock)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)
    return SimpleNamespace(device=torch.device("cuda"))


def test_the_next_is_begun_before_the_last_is_given(gpu: Any) -> None:
    told: list[str] = []

    def inputs() -> Any:
        for n in range(4):
            yield n, torch.full((1,), n)

    def begin(values: Tensor) -> list[Tensor]:
        told.append(f"begin {int(values)}")
        return [values.unsqueeze(0)]

    run = context()
    for one, (found,) in clip_calls._computed(inputs(), begin, gpu, run):
        told.append(f"give {one}")
        assert int(found) == one
    assert told == ["begin 0", "begin 1", "give 0", "begin 2", "give 1", "begin 3", "give 2", "give 3"]
    assert run.busy.seconds["clip"] > 0


def test_memory_that_ends_ends_the_clip(gpu: Any) -> None:
    def begin(_values: Tensor) -> list[Tensor]:
        raise torch.OutOfMemoryError("no")

    with pytest.raises(OutOfMemory):
        next(clip_calls._computed([(0, torch.ones(1))], begin, gpu, context()))


def test_each_frame_has_noise_of_its_own() -> None:
    """As if the frames were encoded one after the other, by one generator; the states are those behind each."""
    model = open_model("builtin", device="cpu", dtype="float32")
    rng = np.random.default_rng(0)
    given = [(n, rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)) for n in range(3)]
    found = [*encoded_frames(given, model, context(posterior="sample", space="raw", seed=0), torch.Generator())]
    generator = torch.Generator()
    for (number, frame), (one, kept, state) in zip(given, found, strict=True):
        assert one == number
        pixels = torch.from_numpy(frame).permute(2, 0, 1).unsqueeze(0) / 127.5 - 1
        wanted = model.encode(pixels).sample(generator)
        assert torch.equal(state, generator.get_state())
        assert kept["latents"].shape == (wanted.shape[1], 1, *wanted.shape[2:])
        assert torch.allclose(kept["latents"][:, 0], wanted[0], atol=1e-5)


def test_values_that_are_not_finite() -> None:
    model = open_model("builtin", device="cpu", dtype="float32")
    latents = torch.zeros(model.info.latent_channels, 1, 2, 2)
    decoded = decoded_frames([(0, latents), (1, latents / 0)], model, context())
    number, rgb = next(decoded)
    assert (number, rgb.shape) == (0, (2 * model.info.spatial_factor, 2 * model.info.spatial_factor, 3))
    with pytest.raises(InputError, match="NaN"):
        next(decoded)


@pytest.mark.parametrize(("whole", "kind"), [(256, Tensor), (255, PixelRows)])
def test_of_large_frames_floats_exist_for_strips_alone(whole: int, kind: type) -> None:
    given: list[object] = []

    def encode(x: object) -> Any:
        given.append(x)
        return SimpleNamespace(mean=torch.zeros(1, 3, 2, 2))

    model: Any = SimpleNamespace(whole_pixels=whole, device=torch.device("cpu"), dtype=torch.float32, encode=encode)
    encode_frame(model, np.zeros((16, 16, 3), np.uint8), "mean", "raw", torch.Generator())
    (one,) = given
    assert isinstance(one, kind)
