"""A wrapped VAE against the same VAE as it is, untiled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from slow_but import slow_but
from stand_in_comfyui import Attention, Model, Vae, comfyui, sliced_attention

from tvae.pipeline import TiledVAE
from tvae.pipeline.comfyui.exact import exact_vae, is_exact
from tvae.pipeline.errors import PlanError, UsageError


@pytest.fixture(autouse=True)
def _comfyui(tmp_path: Path) -> Iterator[None]:
    with comfyui(tmp_path):
        yield


def wrapped(vae: Vae, strip: int | None = 2) -> Any:
    exact = exact_vae(vae)
    exact.first_stage_model._strip = strip
    return exact


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm())


def latents(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


SHAPES = [((1, 4, 12, 9),), ((3, 4, 17, 6),), ((2, 4, 1, 40),)]


@pytest.mark.long
@pytest.mark.parametrize("shape", slow_but(SHAPES[1:2], SHAPES))
@torch.inference_mode()
def test_the_numbers_of_the_untiled_model(shape: tuple[int, ...]) -> None:
    vae = Vae()
    exact, z = wrapped(vae), latents(*shape)
    picture = vae.decode(z)
    assert error(exact.decode(z), picture) < 1e-5
    assert error(exact.decode_tiled(z, tile_x=8, tile_y=8), picture) < 1e-5
    assert error(exact.encode(picture), vae.encode(picture)) < 1e-5
    assert error(exact.encode_tiled(picture, tile_x=8, tile_y=8), vae.encode(picture)) < 1e-5
    assert shape[2] == 1 or "strips of 2" in str(exact.first_stage_model.plan((1, *shape[1:]), "decode"))


def test_their_tiles_would_be_seen() -> None:
    vae, z = Vae(), latents(1, 4, 12, 9)
    picture = vae.decode(z)
    assert error(vae.decode_tiled(z), picture) > 1e-3
    assert error(vae.encode_tiled(picture), vae.encode(picture)) > 1e-3


@pytest.mark.parametrize("side", ["decode", "encode"])
def test_no_tiles_where_memory_runs_out(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exact, z = wrapped(Vae()), latents(1, 4, 12, 9)

    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(TiledVAE, side, full)
    with pytest.raises(PlanError, match="smaller vram"):
        exact.decode(z) if side == "decode" else exact.encode(torch.rand(1, 48, 36, 3))


def test_a_model_that_writes_its_own_output(monkeypatch: pytest.MonkeyPatch) -> None:
    vae, z = Vae(), latents(1, 4, 12, 9)
    want = vae.decode(z)
    for hook in ("comfy_has_chunked_io", "comfy_decode_estimate_is_reliable"):
        monkeypatch.setattr(Model, hook, True, raising=False)
        assert getattr(vae.first_stage_model, hook)
        assert not getattr(wrapped(vae).first_stage_model, hook)
    assert error(wrapped(vae).decode(z), want) < 1e-5
    for tiles in ("_decode_tiled_owned", "_encode_tiled_owned"):
        with pytest.raises(PlanError, match="smaller vram"):
            getattr(wrapped(vae), tiles)(z, tile_x=8)


def test_the_vae_itself_stays_as_it_is() -> None:
    vae, z = Vae(), latents(1, 4, 12, 9)
    model, patcher, before = vae.first_stage_model, vae.patcher, vae.decode(z)
    noted = {name: dict(vars(part)) for name, part in model.named_modules()}
    exact = wrapped(vae)
    exact.decode(z)
    exact.patcher.model.to(torch.float64)
    assert vae.first_stage_model is model
    assert vae.patcher is patcher
    assert type(vae) is Vae
    assert not vae.disable_offload
    assert not is_exact(vae)
    assert {name: dict(vars(part)) for name, part in model.named_modules()} == noted
    assert model.middle.optimized_attention is sliced_attention
    assert torch.equal(vae.decode(z), before)


def test_weights_are_those_of_its_own_patcher() -> None:
    vae, z = Vae(), latents(1, 4, 12, 9)
    exact = wrapped(vae)
    exact.decode(z)
    held = exact.patcher.model
    assert held is not vae.first_stage_model
    assert exact.disable_offload
    held.last.weight = torch.nn.Parameter(held.last.weight * 2, requires_grad=False)  # as a patcher replaces one
    held.first.weight.mul_(0.5)
    model = vae.first_stage_model
    assert torch.equal(model.first.weight, held.first.weight)  # the same memory, until one of them is moved
    model.last.weight = torch.nn.Parameter(model.last.weight * 2, requires_grad=False)
    assert error(exact.decode(z), vae.decode(z)) < 1e-5


def test_what_patchers_note_changes_no_graph() -> None:
    exact, z = wrapped(Vae()), latents(1, 4, 12, 9)
    exact.decode(z)
    digest = exact.first_stage_model._identity.digest
    exact.patcher.model.current_weight_patches_uuid = object()
    exact.patcher.model.first.comfy_cast_weights = True
    exact.decode(z)
    assert exact.first_stage_model._identity.digest == digest
    vae = Vae()
    noted = vae.first_stage_model.first
    noted.comfy_cast_weights, noted._v, vae.first_stage_model.current_weight_patches_uuid = True, object(), object()
    again = wrapped(vae)
    again.decode(z)
    assert again.first_stage_model._identity.digest == digest
    assert not {"comfy_cast_weights", "_v"} & {*vars(again.patcher.model.first)}


def test_a_module_at_two_places_is_one() -> None:
    vae = Vae()
    vae.first_stage_model.also = vae.first_stage_model.middle
    copy = exact_vae(vae).first_stage_model.vae
    assert copy.also is copy.middle
    assert isinstance(copy.middle, Attention)
    assert copy.middle is not vae.first_stage_model.middle


def test_memory_asked_for_is_that_of_one_of_the_batch() -> None:
    vae = Vae()
    exact = wrapped(vae, strip=None)
    for count in (1, 5):
        exact.decode(latents(count, 4, 12, 9))
        assert exact.asked[-1] == exact.first_stage_model.plan((1, 4, 12, 9), "decode").peak_bytes < 1e9
    exact.encode(torch.rand(2, 48, 36, 3))
    assert exact.asked[-1] == exact.first_stage_model.plan((1, 3, 48, 36), "encode").peak_bytes
    exact.patcher.model.to("meta")
    assert exact.memory_used_decode((1, 4, 12, 9), torch.float32) == 12e9
    assert exact.memory_used_encode((1, 3, 48, 36), torch.float32) == 96e9


def test_memory_asked_for_where_there_is_no_plan() -> None:
    exact = exact_vae(Vae(), vram=1000)
    assert exact.memory_used_decode((1, 4, 12, 9), torch.float32) == 12e9
    with pytest.raises(PlanError, match="budget"):
        exact.decode(latents(1, 4, 12, 9))


def test_memory_is_released_after_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[TiledVAE] = []
    monkeypatch.setattr(TiledVAE, "release", lambda self: released.append(self))
    exact, z = wrapped(Vae()), latents(3, 4, 12, 9)
    exact.decode(z)  # which also looks at the model for the first time
    del released[:]
    exact.decode(z)
    exact.encode(torch.rand(1, 48, 36, 3))
    assert len(released) == 2
    assert len([*exact.frames(z)]) == 3
    assert len(released) == 3
    with pytest.raises(UsageError):
        exact.decode(z.double())
    assert len(released) == 4


def test_frames_are_the_pictures() -> None:
    vae, z = Vae(), latents(3, 4, 12, 9)
    got = torch.stack([*wrapped(vae).frames(z)])
    assert error(got, vae.decode(z)) < 1e-5


def test_exact_of_exact() -> None:
    vae, z = Vae(), latents(1, 4, 12, 9)
    twice = exact_vae(exact_vae(vae))
    assert type(twice.first_stage_model.vae) is Model
    assert error(twice.decode(z), vae.decode(z)) < 1e-5


def test_what_is_refused() -> None:
    sound, patched = Vae(), Vae()
    sound.latent_dim = 1  # type: ignore[misc]
    with pytest.raises(UsageError, match="sound"):
        exact_vae(sound)
    patched.patcher.patches = {"first.weight": [1]}
    with pytest.raises(UsageError, match="LoRA"):
        exact_vae(patched)
