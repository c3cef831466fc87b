"""An encoder and a decoder in two files of one folder: one VAE, or a line that says why they are none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from program import invoke
from published_names import Weights, weights_of
from safetensors.torch import save_file
from single_files import kl
from tiny_vaes import TINY

from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.layout import only
from tvae.pipeline.models.load import load_module, locate_vae

OF = {"encoder": ("encoder.", "quant_conv."), "decoder": ("decoder.", "post_quant_conv.")}


def half(weights: Weights, part: str) -> Weights:
    """With all that both sides need."""
    other = OF["decoder" if part == "encoder" else "encoder"]
    return {name: value.contiguous() for name, value in weights.items() if not name.startswith(other)}


@pytest.mark.parametrize("names", [("vae_Encoder", "vae_Decoder"), ("ENCODER-1", "DECODER-1"), ("Encoder", "Decoder")])
def test_names_in_capitals(names: tuple[str, str], tmp_path: Path) -> None:
    weights = weights_of(kl().build())
    for name, part in zip(names, OF, strict=True):
        save_file(half(weights, part), tmp_path / f"{name}.safetensors")
    for spec in (tmp_path, *tmp_path.iterdir()):
        source = locate_vae(str(spec))
        assert not source.lacks
        assert {path.stem for path in source.weight_files} == {*names}


def ltx_halves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    """Both keep the statistics of the latents."""
    tiny = TINY["AutoencoderKLLTXVideo"]
    family = FAMILIES[tiny.class_name]
    layouts = tuple(replace(layout, configs=only(dict(tiny.config))) for layout in family.layouts)
    monkeypatch.setitem(FAMILIES, tiny.class_name, replace(family, layouts=layouts))
    weights = weights_of(tiny.build())
    for part in OF:
        assert "latents_mean" in half(weights, part)
        save_file(half(weights, part), folder / f"{part}.safetensors")
    return weights


def test_what_both_sides_need_stands_in_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = ltx_halves(tmp_path, monkeypatch)
    source = locate_vae(str(tmp_path))
    assert not source.lacks
    state = load_module(source).state_dict()
    assert state.keys() == weights.keys()
    assert all(torch.equal(value, state[name]) for name, value in weights.items())


def test_and_is_not_the_same_in_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = ltx_halves(tmp_path, monkeypatch)
    other = half(weights, "decoder") | {"latents_mean": weights["latents_mean"] + 1}
    save_file(other, tmp_path / "decoder.safetensors")
    lacks = locate_vae(str(tmp_path / "encoder.safetensors")).lacks
    assert lacks["decode"].endswith("decoder.safetensors' is no decoder of it")


def test_halves_of_several_models(tmp_path: Path) -> None:
    weights = weights_of(kl().build())
    save_file(half(weights, "encoder"), tmp_path / "a_encoder.safetensors")
    save_file(half(weights, "decoder"), tmp_path / "b_decoder.safetensors")
    told = (
        "holds several VAEs: a_encoder.safetensors (encoder alone), b_decoder.safetensors (decoder alone); name one of "
        "these files (an encoder and a decoder are one VAE where their names are the same but for these words)"
    )
    with pytest.raises(UsageError) as error:
        locate_vae(str(tmp_path))
    assert told in str(error.value)
    seen = invoke(["inspect", str(tmp_path)])
    assert seen.exit_code == 3
    assert told in " ".join(seen.stderr.split())
