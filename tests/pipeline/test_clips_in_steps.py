"""TiledVAE takes clips of video VAEs step by step: the model's own numbers at every length, nothing captured twice."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from slow_but import slow_but
from tiny_vaes import TINY, relative_l2, result

from tvae.pipeline import TiledVAE
from tvae.pipeline.models.reference import call_reference, reference_mode
from tvae.pipeline.session import new_graph
from tvae.pipeline.session.clip_plan import ClipPlan
from tvae.pipeline.session.clip_steps import ClipSteps

IN_STEPS = [
    ("AutoencoderKLWan", "encode", (1, 5, 9, 7, 2)),
    ("AutoencoderKLWan", "decode", (1, 2, 4)),
    ("AutoencoderKLQwenImage", "encode", (1, 5)),
    ("AutoencoderKLQwenImage", "decode", (1, 3)),
    ("AutoencoderKLCogVideoX", "encode", (1, 9, 17)),
    ("AutoencoderKLCogVideoX", "decode", (1, 2, 3, 5)),
    ("AutoencoderKLMagvit", "encode", (1, 5, 9)),
    ("AutoencoderKLMagvit", "decode", (1, 2, 4)),
    ("AutoencoderKLMochi", "decode", (1, 2, 4)),
    ("TAEHV", "decode", (1, 2, 4)),
    ("TAECVX", "decode", (1, 2, 3, 5)),
    ("SeedVR2VAE", "encode", (1, 5, 9)),
    ("SeedVR2VAE", "decode", (1, 2, 4)),
]
QUICK = [case for case in IN_STEPS if case[:2] == ("AutoencoderKLWan", "decode")]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "side", "lengths"), slow_but(QUICK, IN_STEPS))
def test_every_length_is_the_models_own(
    family: str, side: Any, lengths: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One capture for the first step and one for the others; lengths that the model cuts short are cut short."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made: list[int] = []
    real = new_graph.capture
    monkeypatch.setattr(new_graph, "capture", lambda *args: made.append(1) or real(*args))
    tiny = TINY[family]
    model = tiny.build()
    wide = copy.deepcopy(model).double()
    tiled = TiledVAE(model, "cpu", strip=2)
    frame = tiny.input(side, 5, 4)[:, :, :1]
    for length in lengths:
        x = torch.cat([frame * (1 + 0.1 * n) for n in range(length)], 2)
        with torch.no_grad(), reference_mode(wide):
            wanted = result(call_reference(wide, side, x.double()))
        ours = result(getattr(tiled, side)(x))
        assert ours.shape == wanted.shape
        assert relative_l2(ours, wanted) <= 1e-5, length
        assert isinstance(tiled.plan(tuple(x.shape), side), ClipPlan)
    kinds = 4 if family in ("AutoencoderKLCogVideoX", "TAECVX") else 2  # whose first chunk has several lengths
    assert len(made) <= kinds


def test_a_substitute_does_not_stand_for_a_call_that_is_replaced() -> None:
    model: Any = TINY["AutoencoderKLAllegro"].build()
    model.decode = lambda z: z * 3
    z = TINY["AutoencoderKLAllegro"].input("decode", 4, 3)
    assert torch.equal(call_reference(model, "decode", z), z * 3)


@pytest.mark.slow
def test_a_call_that_is_replaced_is_not_taken_in_steps() -> None:
    """Steps stand for what the class's own call does."""
    tiny = TINY["AutoencoderKLWan"]
    model: Any = tiny.build()
    plain = model.decode
    model.decode = lambda z, return_dict=True: plain(z * 0.5, return_dict=return_dict)
    z = tiny.input("decode", 4, 3)
    with torch.no_grad():
        wanted = model.decode(z).sample
    tiled = TiledVAE(model, "cpu", strip=2)
    assert relative_l2(tiled.decode(z).sample, wanted) <= 1e-5
    assert not isinstance(tiled.plan(tuple(z.shape), "decode"), ClipPlan)


@pytest.mark.slow
def test_a_last_step_that_is_alone_makes_no_caches_and_its_plan_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one step, and of two. Of three the last is like the one before, and one plan serves both."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made: list[int] = []
    real = ClipSteps.run

    def run(*args: Any) -> Any:
        found = real(*args)
        made.append(len(found))
        return found

    monkeypatch.setattr(ClipSteps, "run", run)
    tiny = TINY["AutoencoderKLWan"]
    model = tiny.build()
    wide, tiled = copy.deepcopy(model).double(), TiledVAE(model, "cpu", strip=2)
    frame = tiny.input("encode", 5, 4)[:, :, :1]
    one, two, three = (torch.cat([frame * (1 + 0.1 * n) for n in range(length)], 2) for length in (1, 5, 9))
    plans: dict[int, ClipPlan] = {}
    for x in (two, one, three, two):
        made.clear()
        ours, plan = tiled.encode(x).latent_dist.mean, tiled.plan(tuple(x.shape), "encode")
        with torch.no_grad(), reference_mode(wide):
            expected = call_reference(wide, "encode", x.double()).latent_dist.mean
        assert relative_l2(ours, expected) <= 1e-5
        assert isinstance(plan, ClipPlan)
        plans[len(made)] = plan
        kept = 1 + plan.caches
        assert made == {1: [1], 2: [kept, 1], 3: [kept] * 3}[len(made)]
    assert [plans[n].caches > 0 for n in (1, 2, 3)] == [False, True, True]
    alone, first, second = plans[1].steps[0].plan, plans[2].steps[0].plan, plans[2].steps[1].plan
    assert alone.peak_bytes < first.peak_bytes
    assert second.peak_bytes < plans[3].steps[1].plan.peak_bytes


@pytest.mark.slow
@pytest.mark.parametrize("frames", [(1, 4), (3, 12)])
def test_chunks_are_as_long_as_the_model_says(frames: tuple[int, int]) -> None:
    """CogVideoX's norms see a whole chunk, and two attributes say how many frames it has."""
    tiny = TINY["AutoencoderKLCogVideoX"]
    model = tiny.build()
    vae, z = TiledVAE(model, "cpu"), tiny.input("decode", 3, 2)[:, :, :1].repeat(1, 1, 5, 1, 1)
    z = z * torch.linspace(1, 2, 5)[:, None, None]
    plain = vae.decode(z).sample
    model.num_latent_frames_batch_size, model.num_sample_frames_batch_size = frames
    with torch.no_grad():
        wide = copy.deepcopy(model).double()
        clip = wide.decode(z.double()).sample
        moments = wide.encode(clip).latent_dist.parameters
    assert clip.shape != plain.shape or relative_l2(plain, clip) > 1e-3
    assert relative_l2(vae.decode(z).sample, clip) < 1e-5
    assert relative_l2(vae.encode(clip.float()).latent_dist.parameters, moments) < 1e-5
