"""Law 1: in float32 every family is within 1e-5 of its reference run in float64, whatever the strip."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import product

import pytest
import torch
from slow_but import slow_but
from tiny_vaes import TINY, relative_l2, result
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.models.reference import call_reference, reference_mode
from tvae.pipeline.session.clip_plan import ClipPlan

STRIPS = (1, 3, 5, 37)
TOLERANCE = 1e-5


def reference64(model: nn.Module, side: str, x: Tensor, **extra: object) -> Tensor:
    """The model's own call on the whole input in float64."""
    wide = copy.deepcopy(model).double()
    with torch.no_grad(), reference_mode(wide):
        return result(call_reference(wide, side, x.double(), **extra))  # type: ignore[arg-type]


BOTH = ("AutoencoderKL", "AutoencoderTiny", "AutoencoderKLWan")
ENCODED = ("VQModel", "AutoencoderKLFlux2", "AutoencoderKLQwenImage", "TAEHV", "AutoencoderKLTemporalDecoder")
"""Families whose encoder is tried in the default run; of the others it is the decoder."""
ELSEWHERE = ("CogVideoX", "HunyuanVideo15", "Magvit", "Mochi")
"""Families of which the default run tries one frame (below) or the steps of a clip (models/test_family_steps.py)."""
QUICK_SIDES = [
    (family, side)
    for family in TINY
    for side in ("encode", "decode")
    if (family in BOTH or (side == "encode") == (family in ENCODED))
    and family.removeprefix("AutoencoderKL") not in ELSEWHERE
]


@pytest.mark.long
@pytest.mark.parametrize(("family", "side"), slow_but(QUICK_SIDES, product(TINY, ("encode", "decode"))))
def test_every_family_equals_its_reference(family: str, side: str) -> None:
    """Captured at one size, run at another of odd latent height, in strips of 1, 3, 5 and 37 latent rows."""
    tiny = TINY[family]
    model, extra = tiny.build(), tiny.extra(side)
    small = (4, 3)
    height, width = (39, 5) if family == "AutoencoderKL" else (11, 5)
    tiled = TiledVAE(model, strip=5)
    getattr(tiled, side)(tiny.input(side, *small), **extra)  # the capture's size
    x = tiny.input(side, height, width)
    reference = reference64(model, side, x, **extra)
    tiled, heights = TiledVAE(model, strip=1), set()  # another, with the graph from disk
    for strip in STRIPS:
        for session in tiled._sessions.values():  # rather than a new object, which would prepare the same graph again
            session.limits = replace(session.limits, strip=strip)
            session._steps.clear()
        value = result(getattr(tiled, side)(x, **extra))
        plan = tiled.plan(tuple(x.shape), side, **extra)
        heights.add(max(step.plan.strip_rows for step in plan.steps) if isinstance(plan, ClipPlan) else plan.strip_rows)
        assert value.shape == reference.shape
        assert value.dtype == torch.float32
        assert relative_l2(value, reference) <= TOLERANCE, f"strip {strip}"
    assert len(heights) == len(STRIPS)


@pytest.mark.parametrize("side", ["encode", "decode"])
def test_independent_strips_are_far_off(side: str) -> None:
    """The negative control: what today's tilers do is off by far more than the tolerance, so the test can fail."""
    tiny = TINY["AutoencoderKL"]
    model = tiny.build()
    x = tiny.input(side, 40, 6)
    reference = reference64(model, side, x)
    rows = 5 if side == "decode" else 5 * tiny.scale
    with torch.no_grad():
        pieces = [result(getattr(model, side)(part)) for part in x.split(rows, dim=-2)]
    assert relative_l2(torch.cat(pieces, dim=-2), reference) > 0.1


FEW = [(1, 1), (1, 7), (2, 1), (3, 2)]
QUICK = {
    "AutoencoderKL": [(3, 2)],
    "AutoencoderDC": [(1, 7)],
    "AutoencoderTiny": [(1, 1)],
    "AutoencoderKLWan": [],
}
"""The others are tried in the slow run: each size is captured at its own, which takes seconds."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "height", "width"),
    [
        pytest.param(family, *size, marks=() if size in quick else pytest.mark.slow)
        for family, quick in QUICK.items()
        for size in FEW
    ],
)
def test_latents_of_a_few_pixels(family: str, height: int, width: int) -> None:
    """Sizes too small for a general capture are captured at their own: the smallest with a whole clip, else a frame."""
    tiny = TINY[family]
    model = tiny.build()
    for side in ("encode", "decode"):
        x = tiny.input(side, height, width)
        if x.ndim == 5 and 1 in (height, width) and height * width > 1:
            x = x[:, :, :1]
        value = result(getattr(TiledVAE(model, strip=1), side)(x))
        assert relative_l2(value, reference64(model, side, x)) <= TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "side"),
    [
        ("AutoencoderKLHunyuanVideo15", "decode"),
        pytest.param("AutoencoderKLHunyuanVideo15", "encode", marks=pytest.mark.slow),
        *[
            pytest.param(family, side, marks=pytest.mark.slow)
            for family in ("AutoencoderKLWan", "AutoencoderKLLTXVideo")
            for side in ("encode", "decode")
        ],
    ],
)
def test_a_video_vae_on_a_single_image(family: str, side: str) -> None:
    """One frame: what a model does with the frames after the first is done with none. Wan's row of seven latents
    above is one, too."""
    tiny = TINY[family]
    model = tiny.build()
    value = tiny.input(side, 5, 4)[:, :, :1]
    ours = result(getattr(TiledVAE(model, strip=2), side)(value))
    assert relative_l2(ours, reference64(model, side, value)) <= TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize("side", slow_but(["decode"], ["encode", "decode"]))
def test_pictures_of_fewer_tokens_than_features(side: str) -> None:
    """DC-AE attends to those by keysᵀ x queries, summed over the keys; strips are of queries there."""
    tiny = TINY["AutoencoderDC"]
    model = replace(tiny, config={**tiny.config, "attention_head_dim": 16}).build()
    tiled = TiledVAE(model, strip=2)
    for size in ((7, 2), (5, 3), (8, 2), (9, 2)):  # of the last too many
        x = tiny.input(side, *size)
        value = result(getattr(tiled, side)(x))
        assert relative_l2(value, reference64(model, side, x)) <= TOLERANCE


@pytest.mark.long
def test_residual_upsampling() -> None:
    """Wan 2.2's decoder passes its input on beside each upsampling, by as many channels and by half of them."""
    folded = {"is_residual": True, "in_channels": 12, "out_channels": 12, "patch_size": 2, "decoder_base_dim": 8}
    tiny = TINY["AutoencoderKLWan"]
    model = replace(tiny, config={**tiny.config, **folded, "dim_mult": [1, 2, 4, 4]}).build()
    for frames, *size in ((1, 3, 4), (3, 5, 2)):
        z = tiny.input("decode", *size)[:, :, :1].repeat(1, 1, frames, 1, 1)
        z += torch.linspace(0, 1, frames).view(1, 1, -1, 1, 1)
        exact = reference64(model, "decode", z)
        for strip in (1, 2, 37):
            assert relative_l2(TiledVAE(model, strip=strip).decode(z).sample, exact) <= TOLERANCE


def test_many_samples_and_other_widths_from_one_capture() -> None:
    """A batch is normalised sample by sample; the width is free too."""
    tiny = TINY["AutoencoderKL"]
    model = tiny.build()
    tiled = TiledVAE(model, strip=3)
    for width in (5, 8, 31):
        x = torch.cat([tiny.input("decode", 7, width), 3 + tiny.input("decode", 7, width, seed=9)])
        assert relative_l2(tiled.decode(x).sample, reference64(model, "decode", x)) <= TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("side", slow_but(["decode"], ["encode", "decode"]))
def test_lower_types_err_no_more_than_the_untiled_model(dtype: torch.dtype, side: str) -> None:
    """Error against the float32 model at most 1.02 times the untiled model's own (the H200 test does full sizes)."""
    tiny = TINY["AutoencoderKL"]
    model = tiny.build()
    low = copy.deepcopy(model).to(dtype)
    exact = copy.deepcopy(low).float()  # the stored weights, cast once
    x = tiny.input(side, 40, 24).to(dtype)
    with torch.no_grad():
        reference = result(getattr(exact, side)(x.float()))
        own = relative_l2(result(getattr(low, side)(x)), reference)
    for strip in (7, 40):
        ours = relative_l2(result(getattr(TiledVAE(low, strip=strip), side)(x)), reference)
        assert 0 < ours <= 1.02 * own, f"strip {strip}: {ours} against {own}"
