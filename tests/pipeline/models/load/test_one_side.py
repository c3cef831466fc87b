"""Files with one side of a VAE, of every family that files are known of: the whole model's numbers, or a refusal."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from published_names import latent_diffusion, mochi, weights_of
from safetensors.torch import save_file
from single_files import kl, written
from slow_but import slow_but
from tiny_vaes import TINY, TinyVAE, relative_l2, result

from tvae.pipeline.doors.opening import load_vae
from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.layout import only
from tvae.pipeline.models.load import load_module, load_weights, locate_vae
from tvae.pipeline.models.one_side import Absent
from tvae.pipeline.models.space import space_of
from tvae.pipeline.session.model import open_model

OTHER = {"encode": "decode", "decode": "encode"}
OF = {"encode": ("encoder.", "quant_conv."), "decode": ("decoder.", "post_quant_conv.")}
NAMED = [name for name, family in FAMILIES.items() if family.layouts]
VAE_OF = {"AutoencoderKLHunyuanVideo15": "hunyuanvideo1.5", "TAEHV": "taehv"}
MOCHI = TinyVAE(
    "AutoencoderKLMochi", {**TINY["AutoencoderKLMochi"].config, "layers_per_block": (3, 3, 4, 6, 3)}, (4, 2), 8, (3, 7)
)


def told(tiny: TinyVAE, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its narrow configuration stands in the place of the published ones, in all names."""
    family = FAMILIES[tiny.class_name]
    kin = tuple(replace(one, layers={}) for one in family.kin)
    layouts = tuple(replace(layout, configs=only(dict(tiny.config))) for layout in family.layouts)
    monkeypatch.setitem(FAMILIES, tiny.class_name, replace(family, layouts=layouts, kin=kin))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "side"),
    slow_but(
        [("AutoencoderKL", "decode"), ("AutoencoderKLMochi", "decode"), ("AutoencoderKLWan", "encode")],
        [*product(NAMED, OTHER)],
    ),
)
def test_it_computes_as_the_whole_model(
    family: str, side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = TINY[family]
    told(tiny, monkeypatch)
    model: Any = tiny.build()
    kept = {k: v for k, v in weights_of(model).items() if not k.startswith(OF[OTHER[side]])}
    path = str(written(kept, tmp_path))
    source = locate_vae(path, VAE_OF.get(family))
    assert source.class_name == family
    assert source.lacks.keys() == {OTHER[side]}
    assert load_weights(source).keys() == kept.keys()
    vae = load_vae(path, of=VAE_OF.get(family))
    x = tiny.input(side, 4, 4)
    with torch.no_grad():
        wanted = result(getattr(tiny.build().double(), side)(x.double()))
        assert relative_l2(result(getattr(vae, side)(x)), wanted) < 2e-5
    with pytest.raises(UsageError, match=rf"vae\.safetensors' cannot {OTHER[side]}: it holds an? \w+ alone; take a"):
        getattr(vae, OTHER[side])(tiny.input(OTHER[side], 4, 4))
    left_out = [child for child in load_module(source).children() if isinstance(child, Absent)]
    assert left_out
    assert not any([*child.parameters()] for child in left_out)


@pytest.mark.slow
@pytest.mark.parametrize("side", slow_but(["decode"], OTHER))
@torch.no_grad()
def test_mochi_as_genmo_publishes_it(side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`decoder.safetensors` and `encoder.safetensors`, without a word for the side, alone and beside each other."""
    told(MOCHI, monkeypatch)
    model: Any = MOCHI.build()
    named = mochi(weights_of(model))
    parts = {
        part: {k.removeprefix(f"{part}."): v.contiguous() for k, v in named.items() if k.startswith(f"{part}.")}
        for part in ("encoder", "decoder")
    }
    own = "encoder" if side == "encode" else "decoder"
    save_file(parts[own], tmp_path / f"{own}.safetensors")
    x = MOCHI.input(side, 2, 2)
    wanted = result(getattr(MOCHI.build().double(), side)(x.double()))
    found = open_model(str(tmp_path / f"{own}.safetensors"), device="cpu", dtype="float32")
    missing = "decoder" if own == "encoder" else "encoder"
    with pytest.raises(UsageError, match=rf"cannot {OTHER[side]}: .* there is no '.*/{missing}\.safetensors'"):
        found.plan(tuple(MOCHI.input(OTHER[side], 2, 2).shape), OTHER[side])  # type: ignore[arg-type]
    vae = load_vae(tmp_path)
    assert relative_l2(result(getattr(vae, side)(x)), wanted) < 2e-5
    save_file(parts[missing], tmp_path / f"{missing}.safetensors")
    both = load_module(locate_vae(str(tmp_path)))
    expected = model.state_dict()
    assert both.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[key]) for key, value in both.state_dict().items())


def test_a_decoder_in_latent_diffusions_names(tmp_path: Path) -> None:
    """Fine-tuned decoders are published so; what model it is of is told as for whole files."""
    model: Any = kl().build()
    named = {k: v for k, v in latent_diffusion(weights_of(model)).items() if k.startswith(OF["decode"])}
    path = written(named, tmp_path, {"modelspec.architecture": "stable-diffusion-xl-v1-base/vae"})
    source = locate_vae(str(path))
    assert space_of(source).scale == (0.13025,)
    expected = model.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in load_module(source).state_dict().items())
    del named["post_quant_conv.weight"], named["post_quant_conv.bias"]
    with pytest.raises(UsageError, match=r"the decoder of AutoencoderKL .*: 2 missing \(post_quant_conv\.weight,"):
        locate_vae(str(written(named, tmp_path)))


def test_a_file_that_has_lost_quantisation_is_of_no_other_model(tmp_path: Path) -> None:
    """FLUX.1's has none: one of four channels without it, or with one of the two, is damaged."""
    weights = latent_diffusion(weights_of(kl().build()))
    for lost in ({"quant_conv"}, {"post_quant_conv"}, {"quant_conv", "post_quant_conv"}):
        kept = {k: v for k, v in weights.items() if k.split(".")[0] not in lost}
        with pytest.raises(UsageError, match=rf"AutoencoderKL in .*: {2 * len(lost)} missing \((post_)?quant_conv\.w"):
            locate_vae(str(written(kept, tmp_path)))


def test_part_of_the_other_side_is_no_side(tmp_path: Path) -> None:
    weights = weights_of(kl().build())
    some = [k for k in weights if k.startswith("encoder.")][:4]
    kept = {k: v for k, v in weights.items() if k in some or not k.startswith(OF["encode"])}
    with pytest.raises(UsageError, match=r"nearest is AutoencoderKL in diffusers' names: \d\d missing"):
        locate_vae(str(written(kept, tmp_path)))
