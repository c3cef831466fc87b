"""SeedVR2's VAE: its weights' names, its numbers in one pass and in steps, and strip by strip."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from seedvr2_naive import Naive
from seedvr2_weights import PUBLISHED_MIB, PUBLISHED_TENSORS, published
from tiny_vaes import TINY, relative_l2, result, waves
from torch import Tensor

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.seedvr2 import SeedVR2VAE

TINY_ONE = TINY["SeedVR2VAE"]
GROUPS = TINY_ONE.config["norm_num_groups"]
PIXELS = (8 * 3 + 3, 8 * 2)
"""Height and width of clips: the height is no multiple of 8."""


@pytest.fixture(scope="module")
def model() -> Any:
    """Random weights, float64."""
    return TINY_ONE.build().double()


def clip(frames: int, samples: int = 1, size: tuple[int, int] = PIXELS) -> Tensor:
    return waves((samples, 3, frames, *size)).double()


def latents(frames: int, samples: int = 1) -> Tensor:
    return waves((samples, TINY_ONE.config["latent_channels"], frames, 3, 2)).double()


def test_weights_are_named_and_shaped_as_published() -> None:
    with torch.device("meta"):
        state = SeedVR2VAE().state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == published()
    assert len(state) == PUBLISHED_TENSORS
    assert round(2 * sum(value.numel() for value in state.values()) / 2**20, 2) == PUBLISHED_MIB


@pytest.mark.parametrize(("frames", "split"), [(1, 4), (5, 4), (9, 4), (13, 4), (13, 8), (13, 12)])
def test_encode_is_the_published_slicing(model: Any, frames: int, split: int) -> None:
    """Our one pass over the clip against the naive slices, two clips in a batch."""
    x = clip(frames, samples=2)
    with torch.no_grad():
        posterior = model.encode(x).latent_dist
        moments = torch.stack([Naive(model.state_dict(), GROUPS).encode(one, split) for one in x])
    mean, logvar = moments.chunk(2, dim=1)
    assert posterior.mean.shape == (2, 4, 1 + frames // 4, 3, 2)
    assert relative_l2(posterior.mean, mean) < 1e-12
    assert relative_l2(posterior.logvar, logvar.clamp(-30, 20)) < 1e-12


@pytest.mark.parametrize(("frames", "split"), [(1, 1), (2, 1), (4, 1), (4, 2), (4, 3)])
def test_decode_is_the_published_slicing(model: Any, frames: int, split: int) -> None:
    z = latents(frames, samples=2)
    with torch.no_grad():
        pixels = model.decode(z).sample
        naive = torch.stack([Naive(model.state_dict(), GROUPS).decode(one, split) for one in z])
    assert pixels.shape == (2, 3, 4 * frames - 3, 24, 16)
    assert relative_l2(pixels, naive) < 1e-12


def in_steps(step: Any, x: Tensor, chunks: list[int]) -> Tensor:
    caches: tuple[Tensor, ...] = ()
    made = []
    for chunk in x.split(chunks, dim=2):
        with torch.no_grad():
            out, caches = step(chunk, caches)
        made.append(out)
    return torch.cat(made, dim=2)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("chunks", [[17], [5, 4, 4, 4], [1, 4, 12], [9, 8], [1, 8, 4, 4]])
def test_steps_of_encode_are_the_whole_clip(
    model: Any, chunks: list[int], dtype: torch.dtype, tolerance: float
) -> None:
    x, vae = clip(17).to(dtype), copy.deepcopy(model).to(dtype)
    with torch.no_grad():
        whole = vae.encode(x).latent_dist.parameters
    assert relative_l2(in_steps(vae.encode_step, x, chunks), whole) < tolerance


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("chunks", [[5], [1, 1, 1, 1, 1], [2, 1, 1, 1], [2, 3], [1, 4]])
def test_steps_of_decode_are_the_whole_clip(
    model: Any, chunks: list[int], dtype: torch.dtype, tolerance: float
) -> None:
    z, vae = latents(5).to(dtype), copy.deepcopy(model).to(dtype)
    with torch.no_grad():
        whole = vae.decode(z).sample
    assert relative_l2(in_steps(vae.decode_step, z, chunks), whole) < tolerance


def test_caches_are_as_many_and_as_large_whatever_the_chunk(model: Any) -> None:
    """Steady state: the shapes a step takes are those it returns, so one captured step serves a clip of any length."""
    with torch.no_grad():
        _, after_five = model.encode_step(clip(5))
        _, after_nine = model.encode_step(clip(4), after_five)
        _, of_decode = model.decode_step(latents(2))
        _, next_of_decode = model.decode_step(latents(1), of_decode)
    assert [c.shape for c in after_five] == [c.shape for c in after_nine]
    assert [c.shape for c in of_decode] == [c.shape for c in next_of_decode]
    assert (len(after_five), len(of_decode)) == (16, 25)
    assert all(c.untyped_storage().nbytes() == 8 * c.numel() for c in (*after_five, *of_decode))


def test_independent_chunks_are_far_off(model: Any) -> None:
    """The negative control: forgetting the caches shows."""
    z = latents(4)
    with torch.no_grad():
        whole = model.decode(z).sample
        parts = torch.cat([model.decode(z[:, :, :2]).sample, model.decode_step(z[:, :, 1:])[0][:, :, 1:]], dim=2)
    assert parts.shape == whole.shape
    assert relative_l2(parts, whole) > 0.01


@pytest.mark.parametrize("frames", [2, 4, 6])
def test_clips_of_other_lengths_are_refused(model: Any, frames: int) -> None:
    with pytest.raises(UsageError, match=r"T = 4·k \+ 1"):
        model.encode(clip(frames))
    _, caches = model.encode_step(clip(5))
    with pytest.raises(UsageError, match=r"T = 4·k frames"):
        model.encode_step(clip(5), caches)
    with pytest.raises(UsageError, match="takes no caches or 16, not 3"):
        model.encode_step(clip(4), caches[:3])


def test_diffusers_convention(model: Any) -> None:
    x = clip(1, size=(16, 16))
    with torch.no_grad():
        posterior = model.encode(x, return_dict=False)[0]
        assert torch.equal(posterior.mode(), model.encode(x).latent_dist.mean)
        (pixels,) = model.decode(posterior.mean, return_dict=False)
        assert torch.equal(pixels, model(x).sample)


@pytest.mark.long
@pytest.mark.parametrize(
    ("side", "frames", "strip"),
    [
        ("encode", 1, 3),
        pytest.param("decode", 9, 1, marks=pytest.mark.slow),
        pytest.param("encode", 9, 1, marks=pytest.mark.slow),
        pytest.param("decode", 1, 3, marks=pytest.mark.slow),
    ],
)
def test_strips_are_exact(model: Any, side: str, frames: int, strip: int) -> None:
    """Law 1, captured at one size and run at another; test_law1 has more strips, at 5 frames."""
    narrow = copy.deepcopy(model).float()
    tiled = TiledVAE(narrow, strip=strip)
    shape = (1, 3, frames) if side == "encode" else (1, 4, 1 + frames // 4)
    scale = 8 if side == "encode" else 1
    for height, width in ((4, 3), (7, 5)):
        x = waves((*shape, scale * height, scale * width))
        value = result(getattr(tiled, side)(x))
        with torch.no_grad():
            assert relative_l2(value, result(getattr(model, side)(x.double()))) <= 1e-5
