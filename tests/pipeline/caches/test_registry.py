"""Which trainer and architecture a request means; nothing is guessed."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
from cache_subjects import files_of

from tvae.pipeline.caches import TRAINERS, CacheRequest, architecture_of, trainer_named
from tvae.pipeline.caches.spec import Piece
from tvae.pipeline.caches.trainers import LEFT_OUT
from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.latent_space import LatentSpace

FP16_FIX = "235745af8d86bf4a4c1b5b4f529868b37019a10f7c0b2e79ad0abca3a22bc6e1"  # of SDXL
FT_MSE = "735e4c3a447a3255760d7f86845f09f937809baa529c17370d83e4c3758f3c75"  # of Stable Diffusion 1


def vae(
    name: str = "AutoencoderKL",
    channels: int = 4,
    scale: float = 1.0,
    shift: float = 0.0,
    factor: int = 8,
    digest: str = "",
) -> Any:
    return SimpleNamespace(
        id="v",
        class_name=name,
        latent_channels=channels,
        spatial_factor=factor,
        space=LatentSpace((shift,), (scale,)),
        weights_sha256=digest,
    )


@pytest.mark.parametrize(
    ("trainer", "info", "wanted"),
    [
        ("kohya", vae(scale=0.18215), "sd"),
        ("kohya", vae(scale=0.13025), "sdxl"),
        ("kohya", vae(channels=16, scale=1.5305, shift=0.0609), "sd3"),
        ("musubi", vae("AutoencoderKLHunyuanVideo15", 32, factor=16), "hv15"),
        ("musubi", vae(channels=16, scale=0.3611, shift=0.1159), "zi"),
    ],
)
def test_the_only_one_that_suits_is_taken(trainer: str, info: Any, wanted: str) -> None:
    assert architecture_of(TRAINERS[trainer], None, info).name == wanted


@pytest.mark.parametrize(
    ("trainer", "name", "info", "told"),
    [
        ("kohya", None, vae(channels=16, scale=0.3611, shift=0.1159), "flux, lumina; say which with --arch"),
        ("kohya", None, vae(scale=0.5), "sd, sdxl; say which"),
        ("kohya", None, vae("AutoencoderKLMochi", 12), "trains nothing"),
        ("kohya", "flux", vae(), "has 16 channels"),
        ("kohya", "sdxl", vae(factor=4), "has 8 pixels a latent, this 4"),
        ("kohya", "anima", vae(), "AutoencoderKLQwenImage"),
        ("kohya", "pony", vae(), "no architecture 'pony'"),
        ("musubi", "fp", vae("AutoencoderKLHunyuanVideo", 16), "no architecture 'fp'"),
        ("simpletuner", "wan", vae("AutoencoderKLWan", 16), "of simpletuner for wan: .* overlapping tiles"),
        ("simpletuner", "wan-5b", vae("AutoencoderKLWan", 48, factor=16), "for wan-5b: .* in another order"),
        ("simpletuner", "cosmos2image", vae("AutoencoderKLWan", 16), "for cosmos2image: .* from 0 to 1"),
        ("simpletuner", None, vae("AutoencoderKLWan", 16), "be simpletuner's for qwen_image, krea2, anima; say which"),
        ("simpletuner", None, vae("AutoencoderKLWan", 48, factor=16), "trains nothing"),
        ("musubi", "k5", vae("AutoencoderKLHunyuanVideo", 16), "for k5: .* overlapping"),
    ],
)
def test_anything_else_is_refused(trainer: str, name: str | None, info: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        architecture_of(TRAINERS[trainer], name, info)


@pytest.mark.parametrize(
    ("trainer", "name", "info", "told"),
    [
        ("kohya", "sd", vae(scale=0.13025), "that has scale 0.18215 and shift 0.0 on the way into .*, this 0.13"),
        ("kohya", "sd3", vae(channels=16, scale=0.3611, shift=0.1159), "way into model space, this 0.3611 and 0.1159"),
        ("musubi", "zi", vae(channels=16, scale=1.5305, shift=0.0609), "is not musubi's for zi: that has scale 0.3611"),
        ("kohya", "sdxl", vae(scale=0.13025), None),
        ("kohya", "sdxl", vae(scale=0.5), None),
        ("kohya", "sdxl", vae(scale=0.18215), None),  # the default of those that were stored without
        ("kohya", "sdxl", vae(scale=0.18215, digest=FP16_FIX), None),
        ("kohya", "sd", vae(scale=0.18215, digest=FP16_FIX), "is not kohya's for sd: it is the VAE of SDXL, by its"),
        ("kohya", "sdxl", vae(scale=0.18215, digest=FT_MSE), "it is the VAE of Stable Diffusion 1 and 2, by its"),
        ("kohya", "sd", vae(scale=0.18215, digest=FT_MSE), None),
        ("kohya", "anima", vae("AutoencoderKLWan", 16, scale=0.18215), None),
    ],
)
def test_a_vae_of_another_model(trainer: str, name: str, info: Any, told: str | None) -> None:
    with nullcontext() if told is None else pytest.raises(UsageError, match=told):
        assert architecture_of(TRAINERS[trainer], name, info).name == name


def test_a_finetuned_vae_of_the_shape_is_taken_by_name() -> None:
    assert architecture_of(TRAINERS["kohya"], "sdxl", vae(scale=0.5)).name == "sdxl"


def test_an_unknown_trainer_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"--for dreambooth .*kohya.*musubi"):
        trainer_named("dreambooth")


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_trainer_that_is_left_out_is_refused_with_the_reason(name: str) -> None:
    assert name not in TRAINERS
    with pytest.raises(UsageError, match=f"no cache for {name}: "):
        trainer_named(name)


@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=lambda one: one.name)
def test_every_trainer_says_where_its_format_was_read(trainer: Any) -> None:
    assert re.search(r" [0-9a-f]{40}$", trainer.code) or trainer.shards
    assert trainer.architectures
    assert len({one.name for one in trainer.architectures}) == len(trainer.architectures)


@pytest.mark.parametrize(
    "fields",
    [{"frames": (0,)}, {"start": -1}, {"target_fps": 0.0}, {"posterior": "x"}],
)
def test_a_request_that_contradicts_itself_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        CacheRequest("kohya", **fields)


@pytest.mark.parametrize(
    ("trainer", "architecture"),
    [(n, one.name) for n in TRAINERS if not TRAINERS[n].shards for one in TRAINERS[n].architectures],
)
def test_a_trainer_knows_its_files_by_their_names(trainer: str, architecture: str) -> None:
    found = TRAINERS[trainer]
    clips = next(one for one in found.architectures if one.name == architecture).clips
    names = [*files_of(trainer, architecture, flip=found.flips)]
    names += [*files_of(trainer, architecture, piece=Piece(30, 9, 16.0), frames=3)] if clips else []
    assert all(found.is_entry(PurePosixPath(name)) for name in names)
    others = ("a.png", "a.npz", "a_te.safetensors", "latents.pt", "x/a.json", "a.txt", "a_latents_cache.safetensors")
    assert not any(found.is_entry(PurePosixPath(name)) for name in others)
