"""Wan's and Qwen-Image's VAEs in steps: the numbers of diffusers' own loop, and what a step keeps."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from slow_but import slow_but
from tiny_vaes import TINY, TinyVAE, relative_l2, waves
from torch import Tensor, nn

from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.families.wan import decode_step, encode_step
from tvae.pipeline.models.step_memory import Caches

WAN_2_2 = TinyVAE(
    "AutoencoderKLWan",
    {
        "base_dim": 8,
        "decoder_base_dim": 12,
        "z_dim": 4,
        "dim_mult": [1, 2, 2, 2],
        "num_res_blocks": 1,
        "is_residual": True,
        "patch_size": 2,
        "in_channels": 12,
        "out_channels": 12,
        "scale_factor_spatial": 16,
    },
    (4, 2),
    16,
    (3, 5),
)
MODELS = {"wan-2.1": TINY["AutoencoderKLWan"], "wan-2.2": WAN_2_2, "qwen-image": TINY["AutoencoderKLQwenImage"]}
PIXELS = {"wan-2.1": (27, 19), "wan-2.2": (48, 16), "qwen-image": (27, 19)}
"""Heights and widths of clips: odd where the model takes odd ones, else an odd number of latents."""

Step = Callable[..., tuple[Tensor, Caches]]


@cache
def build(name: str, dtype: torch.dtype = torch.float64) -> Any:
    return MODELS[name].build().to(dtype)


def clip(name: str, frames: int, dtype: torch.dtype = torch.float64, samples: int = 1) -> Tensor:
    return waves((samples, 3, frames, *PIXELS[name])).to(dtype)


def latents(name: str, frames: int, dtype: torch.dtype = torch.float64, samples: int = 1) -> Tensor:
    return waves((samples, MODELS[name].latent[0], frames, 3, 5)).to(dtype)


@torch.no_grad()
def in_steps(step: Step, vae: Any, x: Tensor, chunk: int) -> tuple[list[Tensor], list[Caches]]:
    """The first frame, then ``chunk`` at a time; what each step gives, and its caches."""
    made, kept, caches = [], [], ()
    for part in x.split([1] + [chunk] * ((x.shape[2] - 1) // chunk), dim=2):
        out, caches = step(vae, part, caches)
        made.append(out)
        kept.append(caches)
    return made, kept


TYPES = [(torch.float64, 1e-13), (torch.float32, 1e-6)]


@pytest.mark.parametrize(("dtype", "tolerance"), slow_but(TYPES[:1], TYPES))
@pytest.mark.parametrize(("frames", "samples"), [(1, 2), (5, 1), (9, 1), (13, 2)])
@pytest.mark.parametrize("name", MODELS)
def test_steps_of_encode_are_the_whole_clip(
    name: str, frames: int, samples: int, dtype: torch.dtype, tolerance: float
) -> None:
    vae, x = build(name, dtype), clip(name, frames, dtype, samples)
    made, _ = in_steps(encode_step, vae, x, 4)
    assert [one.shape[2] for one in made] == [1] * (1 + frames // 4)
    with torch.no_grad():
        whole = vae.encode(x).latent_dist.parameters
    assert relative_l2(torch.cat(made, dim=2), whole) < tolerance


@pytest.mark.parametrize(("dtype", "tolerance"), slow_but(TYPES[:1], TYPES))
@pytest.mark.parametrize(("frames", "samples"), [(1, 2), (2, 2), (3, 1), (4, 1)])
@pytest.mark.parametrize("name", MODELS)
def test_steps_of_decode_are_the_whole_clip(
    name: str, frames: int, samples: int, dtype: torch.dtype, tolerance: float
) -> None:
    vae, z = build(name, dtype), 2 * latents(name, frames, dtype, samples)
    made, _ = in_steps(decode_step, vae, z, 1)
    assert [one.shape[2] for one in made] == [1] + [4] * (frames - 1)
    with torch.no_grad():
        whole = vae.decode(z).sample
    assert relative_l2(torch.cat(made, dim=2), whole) < tolerance


@torch.no_grad()
def test_pixels_are_clamped() -> None:
    z = 30 * latents("wan-2.2", 1)
    pixels, _ = decode_step(build("wan-2.2"), z)
    assert float(pixels.abs().max()) == 1.0
    assert relative_l2(pixels, build("wan-2.2").decode(z).sample) < 1e-13


@pytest.mark.parametrize("name", MODELS)
def test_caches_are_as_many_and_as_large_from_the_first_step_on(name: str) -> None:
    """So there are two kinds of step: the second already takes and gives what every later one does."""
    for step, x, chunk, count in ((encode_step, clip(name, 13), 4, 16), (decode_step, latents(name, 4), 1, 24)):
        _, kept = in_steps(step, build(name), x, chunk)
        assert [[c.shape for c in caches] for caches in kept[1:]] == [[c.shape for c in kept[0]]] * 3
        assert len(kept[0]) == count
        assert all(c.untyped_storage().nbytes() == 8 * c.numel() for caches in kept for c in caches)


@pytest.mark.parametrize("name", MODELS)
def test_a_step_changes_neither_the_caches_it_is_given_nor_the_module(name: str) -> None:
    vae = MODELS[name].build()
    before = dict(vars(vae))
    for step, x, chunk in ((encode_step, clip(name, 9).float(), 4), (decode_step, latents(name, 3).float(), 1)):
        (*_, made), (*_, caches, after) = in_steps(step, vae, x, chunk)
        given, saved = list(caches), [c.clone() for c in caches]
        with torch.no_grad():
            again, kept = step(vae, x[:, :, -chunk:], given)
        assert all(one is other for one, other in zip(given, caches, strict=True))
        assert all(map(torch.equal, given, saved))
        assert relative_l2(again, made) < 1e-6
        assert all(relative_l2(one, other) < 1e-6 for one, other in zip(kept, after, strict=True))
    assert vars(vae) == before


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_every_cache_counts(name: str) -> None:
    """The negative control: a step that is given zeros for any one of its caches is off."""
    vae = build(name)
    for step, x, chunk in ((encode_step, clip(name, 9), 4), (decode_step, latents(name, 3), 1)):
        (*_, made), (*_, caches, _after) = in_steps(step, vae, x, chunk)
        for i in (0, len(caches) // 2, len(caches) - 1):
            forgetful = (*caches[:i], torch.zeros_like(caches[i]), *caches[i + 1 :])
            assert relative_l2(step(vae, x[:, :, -chunk:], forgetful)[0], made) > 1e-4


def test_other_numbers_of_frames_or_caches_are_refused() -> None:
    vae, x, z = build("wan-2.1"), clip("wan-2.1", 5), latents("wan-2.1", 2)
    with pytest.raises(UsageError, match="T = 1, not"):
        encode_step(vae, x)
    with pytest.raises(UsageError, match="T = 1, not"):
        decode_step(vae, z)
    with pytest.raises(UsageError, match="T = 1, not"):
        decode_step(vae, z[:, :, 0])
    with torch.no_grad():
        _, caches = encode_step(vae, x[:, :, :1])
    with pytest.raises(UsageError, match="T = 4, not"):
        encode_step(vae, x[:, :, 1:4], caches)
    with pytest.raises(UsageError, match="takes no caches or 16, not 3"):
        encode_step(vae, x[:, :, 1:], caches[:3])


class Exported(nn.Module):
    """A step as the exporter takes it."""

    def __init__(self, vae: nn.Module, step: Step) -> None:
        super().__init__()
        self.vae, self.step = vae, step

    def forward(self, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        out, kept = self.step(self.vae, inputs[0], inputs[1:])
        return (out, *kept)


def dynamic(inputs: list[Tensor]) -> list[dict[int, Any]]:
    """Height and width are free; those of the caches are multiples of one height and one width, as those of x are."""
    if len(inputs) == 1:
        return [dict.fromkeys((3, 4), torch.export.Dim.AUTO)]
    units = {d: math.gcd(*(x.shape[d] for x in inputs)) for d in (3, 4)}
    free = {3: torch.export.Dim("rows"), 4: torch.export.Dim("columns")}
    return [{d: k * free[d] if (k := x.shape[d] // units[d]) > 1 else free[d] for d in (3, 4)} for x in inputs]


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize(("name", "side", "kind"), [*product(MODELS, ("encode", "decode"), ("first", "steady"))])
def test_steps_export(name: str, side: str, kind: str) -> None:
    """A program captured at one size serves another; test_streaming sees to Wan 2.1 in every run."""
    vae, model = build(name, torch.float32), MODELS[name]
    step, scale, channels = (encode_step, model.scale, 3) if side == "encode" else (decode_step, 1, model.latent[0])
    given: list[list[Tensor]] = []
    for height, width in ((3, 2), (4, 5)):
        x = waves((1, channels, 5, height * scale, width * scale))
        caches = step(vae, x[:, :, :1])[1] if kind == "steady" else ()
        frames = 4 if caches and side == "encode" else 1
        given.append([x[:, :, -frames:].clone(), *caches])
    small, large = given
    shapes = {"inputs": dynamic(small)}
    program = torch.export.export(Exported(vae, step), (small,), dynamic_shapes=shapes, strict=False).module()
    out, kept = step(vae, large[0], large[1:])
    made = program(large)
    assert len(made) == 1 + len(kept)
    torch.testing.assert_close(tuple(made), (out, *kept), rtol=1e-5, atol=1e-6)  # some caches are zeros
