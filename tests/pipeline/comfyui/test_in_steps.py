"""A wrapped video VAE, step by step, against the same VAE as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from live_bytes import LiveBytes
from slow_but import slow_but
from stand_in_comfyui import comfyui
from stand_in_comfyui_clips import ClipVae

from tvae.pipeline.comfyui.exact import exact_vae, is_exact
from tvae.pipeline.comfyui.in_steps import InSteps
from tvae.pipeline.errors import PlanError


@pytest.fixture(autouse=True)
def _comfyui(tmp_path: Path) -> Iterator[None]:
    with comfyui(tmp_path):
        yield


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    assert got.shape == want.shape
    return float((got - want).norm() / want.norm())


def latents(frames: int, count: int = 1) -> torch.Tensor:
    return torch.randn(count, 4, frames, 6, 5, generator=torch.Generator().manual_seed(frames))


CASES = [(kind, chunked) for kind in ("wan21", "wan22") for chunked in (True, False)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "chunked"), slow_but([("wan21", True)], CASES))
@torch.inference_mode()
def test_the_numbers_of_the_untiled_model(kind: str, chunked: bool) -> None:
    vae, z = ClipVae(kind, chunked=chunked), latents(4, count=2)
    exact = exact_vae(vae)
    assert isinstance(exact.first_stage_model, InSteps)
    pictures = vae.decode(z)
    assert error(exact.decode(z), pictures) < 1e-5
    assert error(exact.decode_tiled(z, tile_x=8), pictures) < 1e-5
    for frames in (7, 4, 1):
        assert error(exact.encode(pictures[0, :frames]), vae.encode(pictures[0, :frames])) < 1e-5
    frames = torch.stack([*exact.frames(z)])
    assert len(frames) == exact.frame_count(z)
    assert error(frames, pictures.flatten(0, 1)) < 1e-5
    assert exact.patcher.loads == 1


@pytest.mark.long
def test_frames_come_before_the_clip_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    exact = exact_vae(ClipVae())
    parts = InSteps.parts

    def counted(self: InSteps, side: Any, clip: torch.Tensor) -> Iterator[torch.Tensor]:
        for part in parts(self, side, clip):
            made.append(part.shape[2])
            yield part

    monkeypatch.setattr(InSteps, "parts", counted)
    frames = exact.frames(latents(9))
    next(frames)
    assert made == [1]
    next(frames)
    assert made == [1, 2]


def peak(exact: Any, frames: int) -> int:
    """Bytes of decoding and encoding a clip, but for itself and its result."""
    z, pixels = latents(frames), torch.rand(1, 3, 2 * frames - 1, 12, 10)
    stage = exact.first_stage_model
    buffer = torch.empty(stage.decode_output_shape(z.shape))
    with torch.inference_mode(), LiveBytes([z, pixels, buffer, *stage.parameters()]) as live:
        stage.decode(z, output_buffer=buffer)
        small = stage.encode(pixels)
    return live.peak - 2 * small.nbytes


@pytest.mark.slow
def test_a_longer_clip_takes_no_more_memory() -> None:
    exact = exact_vae(ClipVae())
    with torch.inference_mode():  # nothing counts while steps are captured
        exact.first_stage_model.encode(exact.first_stage_model.decode(latents(6)))
    assert peak(exact, 24) <= 1.02 * peak(exact, 6)


@pytest.mark.long
def test_memory_asked_for_is_that_of_a_step() -> None:
    exact = exact_vae(ClipVae())
    short, long = (exact.memory_used_decode((1, 4, t, 6, 5), torch.float32) for t in (3, 50))
    assert short == long == exact.first_stage_model.plan((1, 4, 3, 6, 5), "decode").peak_bytes
    short, long = (exact.memory_used_encode((1, 3, t, 12, 10), torch.float32) for t in (5, 99))
    assert short == long < 1e9


@pytest.mark.long
def test_no_memory_left_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory")

    exact = exact_vae(ClipVae())
    monkeypatch.setattr(InSteps, "parts", full)
    with pytest.raises(PlanError, match="smaller vram"):
        next(exact.frames(latents(3)))


@pytest.mark.long
def test_a_budget_is_kept_to() -> None:
    with pytest.raises(PlanError, match="budget"):
        exact_vae(ClipVae(), vram=1000).decode(latents(3))


@pytest.mark.long
def test_weights_are_those_of_its_own_patcher_under_their_names() -> None:
    vae, z = ClipVae(), latents(3)
    exact = exact_vae(vae)
    exact.decode(z)
    held, model = exact.patcher.model, vae.first_stage_model
    assert [*exact.first_stage_model.state_dict()] == [*model.state_dict()]
    for one in (held, model):
        one.decoder.conv1.weight = torch.nn.Parameter(model.decoder.conv1.weight * 2, requires_grad=False)
    assert error(exact.decode(z), vae.decode(z)) < 1e-5
    assert not is_exact(vae)


@pytest.mark.long
def test_exact_of_exact() -> None:
    vae, z = ClipVae(), latents(3)
    twice = exact_vae(exact_vae(vae))
    assert isinstance(twice.first_stage_model, InSteps)
    assert error(twice.decode(z), vae.decode(z)) < 1e-5


@pytest.mark.parametrize("kind", ["four", "elsewhere"])
def test_a_model_whose_steps_are_not_known_runs_whole(kind: str) -> None:
    exact = exact_vae(ClipVae(kind))
    assert is_exact(exact)
    assert not isinstance(exact.first_stage_model, InSteps)
    assert not exact.first_stage_model.comfy_has_chunked_io


@pytest.mark.parametrize("change", ["hook", "forward"])
def test_a_model_that_somebody_has_changed_is_computed_as_it_is(change: str) -> None:
    vae = ClipVae()
    part = vae.first_stage_model.decoder.conv1
    if change == "hook":
        part.register_forward_hook(lambda *given: given[-1] * 1.5)
    else:
        plain = part.forward
        part.forward = lambda *given: plain(*given) * 1.5
    exact = exact_vae(vae)
    assert not isinstance(exact.first_stage_model, InSteps)
