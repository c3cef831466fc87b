"""TiledVAE keeps the convention of whatever it wraps."""

from __future__ import annotations

import copy
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from slow_but import slow_but
from tiny_vaes import TINY, TinyVAE, relative_l2, result
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import PlanError
from tvae.pipeline.session.session import Session

KL = TINY["AutoencoderKL"]


def test_the_posterior_is_diffusers_own(model: Any, tiled: Any) -> None:
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

    x = KL.input("encode", 9, 6)
    with torch.no_grad():
        theirs = model.encode(x).latent_dist
    ours = tiled.encode(x).latent_dist
    assert type(ours) is DiagonalGaussianDistribution
    for name in ("mean", "logvar", "std", "var"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-4, atol=1e-5)
    assert torch.equal(ours.mode(), ours.mean)
    seeded = [d.sample(torch.Generator().manual_seed(7)) for d in (ours, theirs)]
    torch.testing.assert_close(*seeded, rtol=1e-4, atol=1e-5)


def test_release_lets_go_of_what_calls_keep(model: Any) -> None:
    tiled, z = TiledVAE(copy.deepcopy(model), strip=4), KL.input("decode", 9, 6)
    first = tiled.decode(z).sample
    (session,) = tiled._sessions.values()
    (ready,) = session._runs._ready.values()
    runner = weakref.ref(ready.runner)
    del ready
    tiled.release()
    gc.collect()
    assert runner() is None
    assert torch.equal(tiled.decode(z).sample, first)
    assert [*tiled._sessions.values()] == [session]


@pytest.mark.long
@pytest.mark.parametrize("family", ["AutoencoderKL", "AutoencoderTiny", "AutoencoderDC", "VQModel"])
def test_output_types_and_tuples_are_the_models_own(family: str) -> None:
    tiny = TINY[family]
    model = tiny.build()
    tiled = TiledVAE(model, strip=4)
    for side in ("encode", "decode"):
        x = tiny.input(side, 9, 6)
        with torch.no_grad():
            theirs, as_tuple = getattr(model, side)(x), getattr(model, side)(x, return_dict=False)
        assert type(getattr(tiled, side)(x)) is type(theirs)
        ours = getattr(tiled, side)(x, return_dict=False)
        assert isinstance(ours, tuple)
        assert [type(part) for part in ours] == [type(part) for part in as_tuple]
        assert relative_l2(result(ours), result(as_tuple)) < 1e-5


def test_everything_else_is_the_wrapped_models(model: Any, tiled: Any) -> None:
    assert tiled.config is model.config
    assert (tiled.dtype, tiled.device) == (model.dtype, model.device)
    assert tiled.post_quant_conv is model.post_quant_conv
    assert [n for n, _ in tiled.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert list(tiled.state_dict()) == list(model.state_dict())
    assert isinstance(tiled, nn.Module)
    with pytest.raises(AttributeError, match="no_such_thing"):
        tiled.no_such_thing  # noqa: B018
    x = KL.input("encode", 6, 4)
    with torch.no_grad():
        assert relative_l2(tiled(x).sample, model(x).sample) < 1e-5


@pytest.mark.long
def test_to_rebinds_and_changed_weights_are_seen() -> None:
    model = KL.build()
    tiled = TiledVAE(model, strip=4)
    z = KL.input("decode", 9, 6)
    first = tiled.decode(z).sample
    tiled.to(torch.float64)
    assert model.dtype == torch.float64
    with torch.no_grad():
        assert relative_l2(tiled.decode(z.double()).sample, model.decode(z.double()).sample) < 1e-12
    tiled.to(torch.float32)
    with torch.no_grad():
        model.decoder.conv_out.weight.mul_(2)
        model.decoder.conv_out.bias.mul_(2)
    torch.testing.assert_close(tiled.decode(z).sample, 2 * first, rtol=1e-4, atol=1e-5)


def kept_by(session: Session) -> list[Any]:
    return [session, session._weights, session._runs, *session._sides._made.values()]


@pytest.mark.parametrize("name", slow_but(["AutoencoderKL"], ["AutoencoderKL", "AutoencoderKLLTXVideo"]))
def test_what_is_deleted_is_gone(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At once, captures and all: recordings hold gigabytes of a GPU, which knows nothing of a cycle that lives on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tiny = TINY[name]
    model = tiny.build()
    tiled = TiledVAE(model, strip=4)
    gc.collect()
    gc.disable()
    try:
        tiled.decode(tiny.input("decode", 9, 6), **tiny.extra("decode"))
        sides = [weakref.ref(each) for session in tiled._sessions.values() for each in kept_by(session)]
        gone = [weakref.ref(model), weakref.ref(tiled), *sides]
        del model, tiled
        assert [each() for each in gone] == [None] * len(gone)
    finally:
        gc.enable()


def test_what_is_refused_is_gone(model: Any) -> None:
    """Its weights, too, that were laid out for the call."""
    tiled, refused = TiledVAE(model, vram="1MiB"), False
    gc.collect()
    gc.disable()
    try:
        try:
            tiled.decode(KL.input("decode", 9, 6))
        except PlanError:
            refused = True
        assert refused
        gone = [weakref.ref(each) for each in (tiled, *kept_by(next(iter(tiled._sessions.values()))))]
        del tiled
        assert [each() for each in gone] == [None] * len(gone)
    finally:
        gc.enable()


@pytest.mark.long
def test_blended_tiling_of_the_model_is_not_used_and_left_as_it_was() -> None:
    model: Any = KL.build()
    z = KL.input("decode", 40, 40)
    with torch.no_grad():
        whole = model.decode(z).sample
        model.enable_tiling()
        model.tile_latent_min_size, model.tile_sample_min_size = 16, 64
        blended = model.decode(z).sample
    assert relative_l2(blended, whole) > 0.05
    assert relative_l2(TiledVAE(model, strip=8).decode(z).sample, whole) < 1e-5
    assert model.use_tiling


def test_force_upcast_is_honoured() -> None:
    """A float16 checkpoint that says it overflows is computed in float32 from its stored weights."""
    config = {**KL.config, "force_upcast": True}
    half: Any = TinyVAE("AutoencoderKL", config, KL.latent, KL.scale).build().half()
    exact = copy.deepcopy(half).float()
    z = KL.input("decode", 9, 6).half()
    ours = TiledVAE(half, strip=4).decode(z).sample
    with torch.no_grad():
        theirs = exact.decode(z.float()).sample
    assert ours.dtype == torch.float16
    assert relative_l2(ours, theirs) < 4e-4  # one rounding to float16, not a network of them
    assert half.dtype == torch.float16


def test_a_plan_tells_what_would_run(tiled: Any) -> None:
    plan = tiled.plan((1, 4, 19, 8), "decode")
    assert (plan.input_shape, plan.output_shape) == ((1, 4, 19, 8), (1, 3, 76, 32))
    assert (plan.strips, plan.strip_rows) == (5, 4)
    text = str(plan)
    assert "decoder.conv_norm_out" in text
    assert "group_stats" in text
    assert tiled.plan((1, 3, 76, 32), "encode").strip_rows == 4 * KL.scale


def test_no_global_setting_outlives_a_call(tiled: Any) -> None:
    def settings() -> tuple[bool, ...]:
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        return cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32, torch.is_grad_enabled()

    before = settings()
    tiled.decode(KL.input("decode", 9, 6))
    assert settings() == before


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_it_drops_into_a_diffusers_pipeline() -> None:
    """A tiny class-conditional pipeline from configurations: the same pictures with and without."""
    from diffusers import DDIMScheduler, DiTPipeline, DiTTransformer2DModel

    torch.manual_seed(0)
    transformer = DiTTransformer2DModel(
        sample_size=16, num_layers=1, patch_size=4, attention_head_dim=8, num_attention_heads=2, in_channels=4,
        out_channels=8, attention_bias=True, activation_fn="gelu-approximate", num_embeds_ada_norm=1000,
        norm_type="ada_norm_zero", norm_elementwise_affine=False,
    ).eval()  # fmt: skip
    pipe = DiTPipeline(transformer=transformer, vae=KL.build(), scheduler=DDIMScheduler())
    pipe.set_progress_bar_config(disable=True)

    def pictures() -> Tensor:
        generator = torch.Generator().manual_seed(5)
        images = pipe(class_labels=[1], generator=generator, num_inference_steps=2, output_type="np").images
        return torch.from_numpy(images)

    before = pictures()
    pipe.vae = TiledVAE(pipe.vae, strip=5)
    assert isinstance(pipe.components["vae"], TiledVAE)
    assert relative_l2(pictures(), before) < 1e-5
    pipe.to(torch.float64)
    assert pipe.vae.dtype == torch.float64
