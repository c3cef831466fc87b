"""VAEs in single files, under the names that people meet: known by their headers, and diffusers' numbers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from published_names import (
    Weights,
    hunyuan_15,
    hunyuan_image,
    in_checkpoint,
    latent_diffusion,
    mochi,
    old_attention,
    wan_21,
    weights_of,
)
from published_names_ltx import ltx_090, ltx_095
from single_files import kl, written
from tiny_vaes import TINY, TinyVAE, relative_l2, result, waves

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.tensor_header import Header, TensorSpec
from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.layout import only
from tvae.pipeline.models.load import load_module, load_weights, locate_vae
from tvae.pipeline.models.single_file import recognise
from tvae.pipeline.models.space import space_of
from tvae.pipeline.session.model import open_model

Names = Callable[[Weights], Weights]
CASES: dict[str, tuple[TinyVAE, Names]] = {
    "diffusers": (kl(), dict),
    "old diffusers": (kl(), old_attention),
    "SD and SDXL": (kl(), latent_diffusion),
    "SD 3 and FLUX.1": (kl(16, quant=False), latent_diffusion),
    "two layers": (kl(layers_per_block=2), latent_diffusion),
    "no attention": (kl(mid_block_add_attention=False), latent_diffusion),
    "of five levels and one channel": (
        kl(
            3,
            in_channels=1,
            out_channels=1,
            down_block_types=("DownEncoderBlock2D",) * 5,
            up_block_types=("UpDecoderBlock2D",) * 5,
            block_out_channels=(32, 32, 64, 64, 96),
        ),
        latent_diffusion,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_model(name: str, tmp_path: Path) -> None:
    """Every weight in its place: both sides give the numbers of the module that was saved, but for what a processor's
    kernels make of weights that lie elsewhere in memory."""
    tiny, names = CASES[name]
    model = tiny.build()
    loaded = load_module(locate_vae(str(written(names(weights_of(model)), tmp_path))))
    assert type(loaded) is type(model)
    assert not loaded.training
    assert not any(weight.requires_grad for weight in loaded.parameters())
    expected = model.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[key]) for key, value in loaded.state_dict().items())
    with torch.no_grad():
        for side in ("encode", "decode"):
            x = tiny.input(side, 4, 4)[:, : model.config["in_channels"] if side == "encode" else None]
            torch.testing.assert_close(result(getattr(loaded, side)(x)), result(getattr(model, side)(x)))


@pytest.mark.parametrize("name", CASES)
def test_the_configuration_is_the_models(name: str, tmp_path: Path) -> None:
    tiny, names = CASES[name]
    model = tiny.build()
    config = locate_vae(str(written(names(weights_of(model)), tmp_path))).config
    told = {key: value for key, value in config.items() if value is not None and key != "force_upcast"}
    for key, value in told.items():
        own = model.config[key]
        assert value == (list(own) if isinstance(own, tuple) else own), key
    untold = {"act_fn", "sample_size", "scaling_factor", "shift_factor", "latents_mean", "latents_std", "force_upcast"}
    assert set(model.config) - set(told) - {key for key in model.config if key.startswith("_")} <= untold


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_stored_in_lower_types(dtype: torch.dtype, tmp_path: Path) -> None:
    """The stored values, no others, whatever they are computed in."""
    model = kl().build()
    stored = {name: value.to(dtype) for name, value in weights_of(model).items()}
    path = written(latent_diffusion(stored), tmp_path)
    with torch.no_grad():
        for key, value in model.state_dict().items():
            value.copy_(stored[key])
        x = waves((1, 3, 16, 12))
        found = open_model(str(path), device="cpu", dtype="float32").encode(x)
        assert relative_l2(found.mean, model.encode(x).latent_dist.mean) < 1e-5
    loaded = load_module(locate_vae(str(path)))
    assert {weight.dtype for weight in loaded.parameters()} == {dtype if dtype.itemsize == 2 else torch.float32}


BESIDE = {
    "cond_stage_model.transformer.text_model.embeddings.position_ids": ("first_stage_model.", 0.18215, 0.0),
    "cond_stage_model.model.ln_final.bias": ("first_stage_model.", 0.18215, 0.0),
    "conditioner.embedders.1.model.ln_final.bias": ("first_stage_model.", 0.13025, 0.0),
    "model.diffusion_model.joint_blocks.0.x_block.attn.qkv.weight": ("first_stage_model.", 1.5305, 0.0609),
    "model.diffusion_model.double_blocks.0.img_attn.proj.weight": ("vae.", 0.3611, 0.1159),
}


@pytest.mark.parametrize("beside", BESIDE)
def test_inside_a_checkpoint(beside: str, tmp_path: Path) -> None:
    """The rest of the checkpoint says which model it is, and is not read."""
    prefix, scale, shift = BESIDE[beside]
    tiny = kl() if scale < 0.2 else kl(16, quant=False)
    model = tiny.build()
    others = {beside: torch.zeros(7), "model.diffusion_model.out.2.weight": torch.zeros(3)}
    source = locate_vae(str(written(in_checkpoint(latent_diffusion(weights_of(model)), prefix, others), tmp_path)))
    space = space_of(source)
    assert (space.unknown, space.scale, space.shift) == (None, (scale,), (shift,))
    assert load_weights(source).keys() == model.state_dict().keys()
    assert source.config["scaling_factor"] == scale


def test_another_programs_checkpoint_is_not_guessed(tmp_path: Path) -> None:
    others = {"model.diffusion_model.layers.0.attention.out.weight": torch.zeros(3)}
    weights = in_checkpoint(latent_diffusion(weights_of(kl(16, quant=False).build())), "vae.", others)
    space = space_of(locate_vae(str(written(weights, tmp_path))))
    assert space.unknown is not None
    assert "Stable Diffusion 3 (sd3) and FLUX.1 (flux)" in space.unknown


@pytest.mark.parametrize(
    ("architecture", "scale"),
    [
        ("stable-diffusion-v1/vae", 0.18215),
        ("stable-diffusion-v2-768-v", 0.18215),
        ("stable-diffusion-xl-v1-base/vae", 0.13025),
        ("something-else", None),
        ("flux-1-dev", None),
    ],
)
def test_metadata_say_which_model(architecture: str, scale: float | None, tmp_path: Path) -> None:
    metadata = {"modelspec.architecture": architecture}
    path = written(latent_diffusion(weights_of(kl().build())), tmp_path, metadata)
    space = space_of(locate_vae(str(path)))
    assert (space.unknown is None, space.scale) == (scale is not None, (scale or 1.0,))


def test_what_shapes_do_not_tell_is_asked_for(tmp_path: Path) -> None:
    path = str(written(latent_diffusion(weights_of(kl().build())), tmp_path))
    source = locate_vae(path)
    assert source.config["scaling_factor"] is None, "not the class's default, which is another model's"
    assert space_of(locate_vae(path, "sdxl")).scale == (0.13025,)
    assert space_of(locate_vae(path, "sd1")).scale == (0.18215,)
    with pytest.raises(UsageError, match=r"is not of flux: it may be of sd1, playground2\.5 or sdxl"):
        locate_vae(path, "flux")
    with pytest.raises(UsageError, match="leave --vae-of out"):
        locate_vae("builtin", "sdxl")


def test_a_file_beside_its_configuration(tmp_path: Path) -> None:
    """In diffusers' folder, by the file's name: the configuration that lies there counts."""
    model = kl(scaling_factor=0.5, norm_num_groups=16).build()
    model.save_pretrained(tmp_path)
    source = locate_vae(str(tmp_path / "diffusion_pytorch_model.safetensors"))
    assert (source.config["norm_num_groups"], space_of(source).scale) == (16, (0.5,))
    assert torch.equal(load_module(source).state_dict()["quant_conv.bias"], model.state_dict()["quant_conv.bias"])


@pytest.mark.long
def test_it_needs_no_diffusers_and_no_network(tmp_path: Path) -> None:
    path = written(latent_diffusion(weights_of(kl().build())), tmp_path)
    code = (
        "import sys; from tvae.pipeline.models.load import *; s = locate_vae(sys.argv[1]); load_weights(s)\n"
        "print([m for m in ('diffusers', 'huggingface_hub', 'urllib3') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_diffusers_own_converter_agrees(tmp_path: Path) -> None:
    """Of the names of Latent Diffusion, at two depths."""
    from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint

    for tiny in (kl(), kl(layers_per_block=2, block_out_channels=(32, 32, 64))):
        weights = latent_diffusion(weights_of(tiny.build()))
        source = locate_vae(str(written(weights, tmp_path)))
        expected = convert_ldm_vae_checkpoint(dict(weights), source.config)
        found = load_weights(source)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found)


def test_order_and_names_of_the_file_do_not_matter(tmp_path: Path) -> None:
    """The same model under three namings has the same graph's key and the same weights."""
    model = kl().build()
    found = [load_weights(locate_vae(str(written(n(weights_of(model)), tmp_path)))) for n in (dict, latent_diffusion)]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert not any(re.search(r"query|attn_1", name) for one in found for name in one)


TABLED: dict[str, tuple[TinyVAE, Names]] = {
    "Wan 2.1": (
        TinyVAE("AutoencoderKLWan", {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 1, 1, 1]}, (4, 2), 8),
        wan_21,
    ),
    "Mochi": (TINY["AutoencoderKLMochi"], mochi),
    "HunyuanImage": (
        TinyVAE(
            "AutoencoderKLHunyuanImage",
            {
                **TINY["AutoencoderKLHunyuanImage"].config,
                **{"block_out_channels": (32,) * 6, "layers_per_block": 2, "spatial_compression_ratio": 32},
            },
            (8, None),
            32,
        ),
        hunyuan_image,
    ),
}


@pytest.mark.parametrize("name", TABLED)
def test_values_of_families_that_shapes_do_not_tell(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrow models in the place of the published ones: tensors that are split, and buffers that no file holds."""
    tiny, names = TABLED[name]
    config = {**tiny.config, "layers_per_block": (3, 3, 4, 6, 3)} if name == "Mochi" else tiny.config
    model = TinyVAE(tiny.class_name, config, tiny.latent, tiny.scale).build()
    family = FAMILIES[tiny.class_name]
    layouts = tuple(replace(layout, configs=only(config)) for layout in family.layouts)
    monkeypatch.setitem(FAMILIES, tiny.class_name, replace(family, layouts=layouts))
    source = locate_vae(str(written(names(weights_of(model)), tmp_path)))
    loaded = load_module(source)
    expected = model.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in loaded.state_dict().items())
    buffers = dict(loaded.named_buffers())
    assert all(torch.equal(value, buffers[key]) for key, value in model.named_buffers())
    with torch.no_grad():
        z = waves((1, *filter(None, tiny.latent), 2, 2))
        assert relative_l2(result(loaded.decode(z)), result(model.decode(z))) < 1e-5  # type: ignore[operator]


@pytest.mark.parametrize("of", ["hunyuanvideo1.5", "hunyuanimage-refiner"])
def test_the_class_that_the_user_named(of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file for two models: three frames of latents come out as nine frames, or as three."""
    names = {
        "hunyuanvideo1.5": "AutoencoderKLHunyuanVideo15",
        "hunyuanimage-refiner": "AutoencoderKLHunyuanImageRefiner",
    }
    family, tiny = FAMILIES[names["hunyuanvideo1.5"]], TINY[names[of]]
    layouts = tuple(replace(layout, configs=only(tiny.config)) for layout in family.layouts)
    monkeypatch.setitem(FAMILIES, family.class_name, replace(family, layouts=layouts))
    model = tiny.build()
    source = locate_vae(str(written(hunyuan_15(weights_of(model)), tmp_path)), of)
    loaded = load_module(source)
    assert type(loaded) is type(model)
    assert (space_of(source).unknown is None) == (of == "hunyuanvideo1.5")
    with torch.no_grad():
        z = waves((1, 8, 3, 2, 2))
        found = result(loaded.decode(z))  # type: ignore[operator]
        assert relative_l2(found, result(model.decode(z))) < 1e-5  # type: ignore[operator]
    assert found.shape[2] == (9 if of == "hunyuanvideo1.5" else 3)


def test_diffusers_own_converters_agree_on_other_names() -> None:
    """Wan 2.1, LTX-Video and LTX-2, on shapes alone."""
    from diffusers.loaders import single_file_utils as own
    from diffusers.models import autoencoders

    cases = (
        (autoencoders.AutoencoderKLWan, wan_21, own.convert_wan_vae_to_diffusers, ""),
        (autoencoders.AutoencoderKLLTXVideo, ltx_090, own.convert_ltx_vae_checkpoint_to_diffusers, "vae."),
        (autoencoders.AutoencoderKLLTX2Video, ltx_095, own.convert_ltx2_vae_to_diffusers, "vae."),
    )
    for cls, names, convert, prefix in cases:
        with torch.device("meta"):
            stored = names(dict(cls().state_dict()))
        header = Header({k: TensorSpec("F32", tuple(v.shape)) for k, v in stored.items()}, {})
        found = recognise(header, Path("x"))
        expected = {id(v): k for k, v in convert({prefix + k: v for k, v in stored.items()}).items()}
        assert {k: p.stored for k, p in found.pieces.items()} == {
            expected[id(v)]: k for k, v in stored.items() if id(v) in expected
        }
