"""CogVideoX's, Mochi's and Magvit's VAEs in steps: the numbers of diffusers' own calls, and what a step keeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from tiny_vaes import TINY, relative_l2, waves
from torch import Tensor

from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.calls import SIDES
from tvae.pipeline.models.families import cogvideox, magvit, mochi, stepping_of
from tvae.pipeline.models.step_memory import Caches
from tvae.pipeline.models.stepping import Cuts

Step = Callable[..., tuple[Tensor, Caches]]

COG, MAGVIT, MOCHI = "AutoencoderKLCogVideoX", "AutoencoderKLMagvit", "AutoencoderKLMochi"
STEPS: dict[tuple[str, str], Step] = {
    (COG, "encode"): cogvideox.encode_step,
    (COG, "decode"): cogvideox.decode_step,
    (MAGVIT, "encode"): magvit.encode_step,
    (MAGVIT, "decode"): magvit.decode_step,
    (MOCHI, "decode"): mochi.decode_step,
}
LENGTHS = {
    (COG, "encode"): (1, 5, 8, 9, 13, 16, 17, 25),
    (COG, "decode"): (1, 2, 3, 4, 5, 7),
    (MAGVIT, "encode"): (1, 5, 9, 13, 17),
    (MAGVIT, "decode"): (1, 2, 3, 4, 5),
    (MOCHI, "decode"): (1, 2, 3, 4, 5),
}
LONG = {(COG, "encode"): (13, 16, 25), (COG, "decode"): (4, 7), (MAGVIT, "encode"): (13,), (MAGVIT, "decode"): (4,)}
LONG[MOCHI, "decode"] = (4, 5)
"""Those of the slow run."""
CASES = [
    pytest.param(*side, frames, marks=pytest.mark.slow if frames in LONG.get(side, ()) else ())
    for side, lengths in LENGTHS.items()
    for frames in lengths
]
CACHES = {
    (COG, "encode"): 14,
    (COG, "decode"): 22,
    (MAGVIT, "encode"): 15,
    (MAGVIT, "decode"): 23,
    (MOCHI, "decode"): 10,
}


@cache
def build(family: str) -> Any:
    return TINY[family].build().double()


def clip(family: str, side: str, frames: int, samples: int = 1) -> Tensor:
    """Odd numbers of latents."""
    tiny = TINY[family]
    scale, channels = (tiny.scale, 3) if side == "encode" else (1, tiny.latent[0])
    return waves((samples, channels, frames, 3 * scale, 5 * scale)).double()


def cuts_of(family: str, side: Any) -> Cuts:
    """The cuts that clips go by."""
    stepping = stepping_of(family, side)
    assert stepping is not None
    assert stepping.cuts is not None
    return stepping.cuts


@torch.no_grad()
def in_steps(family: str, side: Any, x: Tensor, vae: Any = None) -> tuple[list[Tensor], list[Caches]]:
    """What each step gives, and its caches."""
    made, kept, caches = [], [], ()
    for part in x.split(list(cuts_of(family, side).sizes(x.shape[2])), dim=2):
        out, caches = STEPS[family, side](vae or build(family), part, caches)
        made.append(out)
        kept.append(caches)
    return made, kept


@torch.no_grad()
def reference(family: str, side: str, x: Tensor) -> Tensor:
    """The model's own call."""
    vae = build(family)
    found: Tensor = vae.encode(x).latent_dist.parameters if side == "encode" else vae.decode(x).sample
    return found


@pytest.mark.long
@pytest.mark.parametrize(("family", "side", "frames"), CASES)
def test_steps_are_the_whole_clip(family: str, side: str, frames: int) -> None:
    x = clip(family, side, frames, samples=2)
    made, kept = in_steps(family, side, x)
    assert relative_l2(torch.cat(made, 2), reference(family, side, x)) < 1e-13
    assert {len(caches) for caches in kept} == {CACHES[family, side]}


@pytest.mark.parametrize(("side", "frames"), [("encode", 25), ("decode", 6)])
def test_chunks_matter_where_norms_see_them(side: str, frames: int) -> None:
    """CogVideoX cut elsewhere is another function: this is why the first chunk waits for the clip's length."""
    step, x = STEPS[COG, side], clip(COG, side, frames)
    sizes = [1, 8, 8, 8] if side == "encode" else [3, 2, 1]
    made, caches = [], ()
    with torch.no_grad():
        for part in x.split(sizes, 2):
            out, caches = step(build(COG), part, caches)
            made.append(out)
    whole, other = reference(COG, side, x), torch.cat(made, 2)
    assert whole.shape[2] != other.shape[2] or relative_l2(other, whole) > 1e-3


@pytest.mark.parametrize(("family", "side"), STEPS)
def test_caches_are_as_many_and_as_large_from_the_first_step_on(family: str, side: str) -> None:
    """So there are two kinds of step beside the size of the first chunk, and memory does not grow."""
    _, kept = in_steps(family, side, clip(family, side, LENGTHS[family, side][-1]))
    assert len(kept) > 2
    assert all([c.shape for c in caches] == [c.shape for c in kept[0]] for caches in kept)
    assert all(c.untyped_storage().nbytes() == 8 * c.numel() for caches in kept for c in caches)


@pytest.mark.parametrize(("family", "side"), STEPS)
def test_heights_of_caches_are_multiples_of_the_latent_s(family: str, side: str) -> None:
    """A capture at one size then serves every other."""
    _, (caches, *_) = in_steps(family, side, clip(family, side, 1))
    assert all(c.shape[-2] % 3 == 0 and c.shape[-1] % 5 == 0 for c in caches)


@pytest.mark.parametrize(("family", "side"), STEPS)
def test_a_step_changes_neither_the_caches_it_is_given_nor_the_modules(family: str, side: str) -> None:
    vae, x = TINY[family].build().double(), clip(family, side, LENGTHS[family, side][-1])
    before = [dict(vars(m)) for m in vae.modules()]
    _, (*_, caches, _after) = in_steps(family, side, x, vae)
    saved = [c.clone() for c in caches]
    with torch.no_grad():
        STEPS[family, side](vae, x[:, :, -cuts_of(family, side).size :], caches)
    assert all(map(torch.equal, caches, saved))
    assert [dict(vars(m)) for m in vae.modules()] == before


def test_a_step_that_fails_leaves_no_trace() -> None:
    for (family, side), step in STEPS.items():
        vae = TINY[family].build().double()
        before = [dict(vars(m)) for m in vae.modules()]
        with pytest.raises(RuntimeError):
            step(vae, clip(family, side, 1)[:, :2])
        assert [dict(vars(m)) for m in vae.modules()] == before


def test_a_module_s_own_forward_is_put_back() -> None:
    """Offloading hooks wrap the forward of an instance."""
    vae = TINY[MOCHI].build().double()
    conv = next(m for m in vae.decoder.modules() if type(m).__name__ == "CogVideoXCausalConv3d")
    conv.forward = wrapped = lambda *_: None
    with torch.no_grad():
        mochi.decode_step(vae, clip(MOCHI, "decode", 1))
    assert conv.forward is wrapped


@pytest.mark.long
@torch.no_grad()
@pytest.mark.parametrize(("family", "side"), STEPS)
def test_every_cache_counts(family: str, side: str) -> None:
    """The negative control: a step that is given zeros for any one of its caches is off."""
    vae, x = build(family), clip(family, side, LENGTHS[family, side][-1])
    (*_, made), (*_, caches, _after) = in_steps(family, side, x)
    last = x[:, :, -cuts_of(family, side).size :]
    for i in range(len(caches)):
        forgetful = (*caches[:i], torch.zeros_like(caches[i]), *caches[i + 1 :])
        assert relative_l2(STEPS[family, side](vae, last, forgetful)[0], made) > 1e-5


def test_another_number_of_caches_is_refused() -> None:
    for (family, side), step in STEPS.items():
        x = clip(family, side, 1)
        with torch.no_grad():
            _, caches = step(build(family), x)
            with pytest.raises(UsageError, match=rf"takes no caches or {CACHES[family, side]}, not 3"):
                step(build(family), x, caches[:3])


@torch.no_grad()
def test_mochi_without_the_frames_it_drops() -> None:
    vae = TINY[MOCHI].build().double()
    vae.drop_last_temporal_frames = False  # type: ignore[assignment]
    z = clip(MOCHI, "decode", 2)
    first, caches = mochi.decode_step(vae, z[:, :, :1])
    second, _ = mochi.decode_step(vae, z[:, :, 1:], caches)
    assert first.shape[2] == second.shape[2] == 6
    assert relative_l2(torch.cat([first, second], 2), vae.decode(z).sample) < 1e-13  # type: ignore[operator]


@pytest.mark.parametrize("count", range(1, 40))
@pytest.mark.parametrize("cuts", [Cuts(1, 4), Cuts(0, 4), Cuts(1, 1), Cuts(0, 8, rest_first=True)])
def test_cuts_take_every_frame_once(cuts: Cuts, count: int) -> None:
    sizes = list(cuts.sizes(count))
    assert sum(sizes) == count
    assert min(sizes) > 0
    if cuts.rest_first:
        assert sizes[1:] == [cuts.size] * (len(sizes) - 1)
        assert sizes[0] == (count if count < cuts.size else cuts.size + count % cuts.size)
        with pytest.raises(ValueError, match="length"):
            next(cuts.sizes(None))
    else:
        endless = cuts.sizes(None)
        assert sizes[:-1] == [next(endless) for _ in sizes[:-1]]
        assert sizes[-1] <= next(endless)


def test_sides_without_steps() -> None:
    assert stepping_of(MOCHI, "encode") is None
    assert [stepping_of("AutoencoderKL", side) for side in SIDES] == [None, None]
