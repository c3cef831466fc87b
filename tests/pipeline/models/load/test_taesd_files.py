"""TAESD's files as their author publishes them, a side each, against the layers written over again."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from slow_but import slow_but
from taesd_naive import decoded, encoded, random_file
from tiny_vaes import relative_l2, waves
from torch import Tensor

from tvae.pipeline.doors.opening import load_vae
from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.load import load_module, locate_vae, values_of
from tvae.pipeline.models.space import space_of
from tvae.pipeline.session.model import open_model

KINDS = {
    "taesd": ("plain", 4, "AutoencoderTiny", 8),
    "taef1": ("plain", 16, "AutoencoderTiny", 8),
    "taef2": ("pooled", 32, "TAESD", 8),
    "taesana": ("deep", 32, "TAESD", 32),
}
SIDES = ("encoder", "decoder")


def published(folder: Path, name: str, dtype: torch.dtype = torch.float32, sides: Any = SIDES) -> dict[str, Any]:
    """Files of one model in a folder; what they hold, in float64, by side."""
    kind, latent, _, _ = KINDS[name]
    stored = {side: random_file(side, kind, latent, seed) for seed, side in enumerate(SIDES)}
    for side in sides:
        save_file({k: v.to(dtype) for k, v in stored[side].items()}, folder / f"{name}_{side}.safetensors")
    return {side: {k: v.to(dtype).double() for k, v in stored[side].items()} for side in SIDES}


def inputs(name: str) -> tuple[Tensor, Tensor]:
    _, latent, _, factor = KINDS[name]
    height, width = (3, 2) if factor == 8 else (2, 1)
    return waves((1, 3, factor * height, factor * width)), waves((1, latent, height, width))


EACH = [*product(KINDS, (torch.float32, torch.float16, torch.bfloat16))]
OFTEN = [("taesd", torch.float16), ("taef1", torch.float32), ("taef2", torch.float16), ("taesana", torch.bfloat16)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), slow_but(OFTEN, EACH))
@torch.no_grad()
def test_both_sides_of_a_folder(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    weights = published(tmp_path, name, dtype)
    kind, _, class_name, factor = KINDS[name]
    source = locate_vae(str(tmp_path))
    assert (source.class_name, source.stored_dtype, source.lacks) == (class_name, dtype, {})
    pixels, latents = inputs(name)
    wanted = encoded(weights["encoder"], pixels.double(), kind), decoded(weights["decoder"], latents.double(), kind)
    module: Any = load_module(source, torch.float64)
    assert relative_l2(module.encode(pixels.double()).latents, wanted[0]) < 1e-12
    assert relative_l2(module.decode(latents.double()).sample, wanted[1]) < 1e-12
    for strip in (1, None):
        model = open_model(str(tmp_path), device="cpu", dtype="float32", strip=strip)
        assert relative_l2(model.encode(pixels).mean, wanted[0]) < 1e-5
        assert relative_l2(model.decode(latents), wanted[1]) < 1e-5
    assert model.geometry.spatial == factor


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["taesd", "taesana"], KINDS))
@torch.no_grad()
def test_one_side_alone(name: str, tmp_path: Path) -> None:
    """The same numbers; for the other side one line, which names the file that is missing."""
    kind, _, class_name, _ = KINDS[name]
    pixels, latents = inputs(name)
    for side, other, call, refused in (("encoder", "decoder", "encode", "decode"), (*SIDES[::-1], "decode", "encode")):
        folder = tmp_path / side
        folder.mkdir()
        weights = published(folder, name, sides=[side])[side]
        path = folder / f"{name}_{side}.safetensors"
        source = locate_vae(str(path))
        assert source.class_name == class_name
        assert locate_vae(str(folder)).weight_files == source.weight_files == (path,)
        x, y = (pixels, latents) if side == "encoder" else (latents, pixels)
        wanted = (encoded if side == "encoder" else decoded)(weights, x.double(), kind)
        model, vae = open_model(str(path), device="cpu", dtype="float32"), load_vae(path)
        found = getattr(model, call)(x)
        assert relative_l2(found.mean if side == "encoder" else found, wanted) < 1e-5
        assert relative_l2(getattr(vae, call)(x)[0], wanted) < 1e-5
        module = load_module(source)
        assert not any(weight.is_meta for weight in module.parameters())
        line = rf"{path}' cannot {refused}: it holds an? {side} alone, and there is no '.*/{name}_{other}\.safetensors'"
        calls: list[Any] = [getattr(one, refused) for one in (model, vae, module)]
        calls += [lambda z: model.plan(tuple(z.shape), refused), lambda z: vae.plan(tuple(z.shape), refused)]  # noqa: B023
        for one in calls:
            with pytest.raises(UsageError, match=line) as error:
                one(y)
            assert "\n" not in str(error.value)
        assert model.info.lacks.keys() == {refused}
        assert model.info.values == values_of(source)


def test_either_of_two_files_stands_for_both(tmp_path: Path) -> None:
    """As diffusers' own files of the same weights do, which are one VAE with them."""
    published(tmp_path, "taesd")
    found = [locate_vae(str(tmp_path / f"taesd_{side}.safetensors")) for side in SIDES]
    assert found[0].weights_sha256 == found[1].weights_sha256
    assert [one.lacks for one in found] == [{}, {}]
    load_module(found[0]).save_pretrained(tmp_path / "diffusers")  # type: ignore[operator]
    whole = locate_vae(str(tmp_path / "diffusers"))
    assert values_of(whole) == values_of(found[0]) == values_of(found[1])


def test_what_goes_together_only_names_tell(tmp_path: Path) -> None:
    """SDXL's and SD's have the same layers: sides of two models are not put together."""
    published(tmp_path, "taesd", sides=["encoder"])
    (tmp_path / "taesd_encoder.safetensors").rename(tmp_path / "taesdxl_encoder.safetensors")
    published(tmp_path, "taesd", sides=["decoder"])
    with pytest.raises(UsageError, match=r"several VAEs: taesd_decoder\.safetensors \(decoder alone\), taesdxl_e"):
        locate_vae(str(tmp_path))
    assert locate_vae(str(tmp_path / "taesd_decoder.safetensors")).lacks.keys() == {"encode"}
    published(tmp_path, "taesd")
    published(tmp_path, "taef1")
    pairs = r": taef1_decoder\.safetensors with taef1_encoder\.safetensors, taesd_decoder\.safetensors with .*, taesd"
    with pytest.raises(UsageError, match=pairs + r".*; name one of these files"):
        locate_vae(str(tmp_path))
    assert locate_vae(str(tmp_path / "taef1_encoder.safetensors")).config["latent_channels"] == 16


def test_a_file_beside_it_that_is_of_another_model(tmp_path: Path) -> None:
    """Of other latents, damaged, or of the same side: said only where that side is wanted."""
    published(tmp_path, "taesd")
    beside = tmp_path / "taesd_encoder.safetensors"
    cases = {
        "is no encoder of it$": random_file("encoder", "plain", 16),
        "'.*' is no encoder of it": random_file("decoder", "plain", 4),
        r"is no encoder of it: VAE '.*' is no VAE that tvae knows; nearest is the encoder of AutoencoderTiny in "
        r"TAESD's names: 1 missing \(5\.conv\.2\.bias\)": {
            k: v for k, v in random_file("encoder", "plain", 4).items() if k != "5.conv.2.bias"
        },
    }
    for reason, weights in cases.items():
        save_file(weights, beside)
        source = locate_vae(str(tmp_path / "taesd_decoder.safetensors"))
        assert source.weight_files == (tmp_path / "taesd_decoder.safetensors",)
        with pytest.raises(UsageError, match=reason):
            load_vae(tmp_path / "taesd_decoder.safetensors").encode(torch.zeros(1, 3, 16, 16))


def test_model_space_is_what_the_author_gives(tmp_path: Path) -> None:
    """His latents are those of the diffusion model; FLUX.2's takes squares of 2×2 of them as channels."""
    for name, patch in (("taesd", 1), ("taef2", 2), ("taesana", 1)):
        folder = tmp_path / name
        folder.mkdir()
        published(folder, name)
        space = space_of(locate_vae(str(folder)))
        assert (space.unknown, space.scale, space.shift, space.patch) == (None, (1.0,), (0.0,), patch)


@pytest.mark.parametrize("names", ["ComfyUI", "diffusers", "one module"])
@pytest.mark.parametrize("name", ["taef1", "taef2", "taesana"])
def test_one_file_in_other_programs_names(name: str, names: str, tmp_path: Path) -> None:
    weights = published(tmp_path, name)
    whole: dict[str, Tensor] = {}
    for side in SIDES:
        for key, value in random_file(side, KINDS[name][0], KINDS[name][1], SIDES.index(side)).items():
            number, rest = key.split(".", 1)
            shift = names == "diffusers" and side == "decoder"
            start = {"ComfyUI": f"taesd_{side}.", "diffusers": f"{side}.layers.", "one module": f"{side}."}[names]
            whole[f"{start}{int(number) - shift}.{rest}"] = value
    if names == "ComfyUI":
        whole |= {"vae_scale": torch.ones(()), "vae_shift": torch.zeros(())}
    save_file(whole, tmp_path / "whole.safetensors")
    module: Any = load_module(locate_vae(str(tmp_path / "whole.safetensors")), torch.float64)
    pixels, latents = inputs(name)
    with torch.no_grad():
        wanted = encoded(weights["encoder"], pixels.double(), KINDS[name][0])
        assert relative_l2(module.encode(pixels.double()).latents, wanted) < 1e-12
        wanted = decoded(weights["decoder"], latents.double(), KINDS[name][0])
        assert relative_l2(module.decode(latents.double()).sample, wanted) < 1e-12


def test_pickled_files_go_together_too(tmp_path: Path) -> None:
    for side in SIDES:
        torch.save(random_file(side, "pooled", 32), tmp_path / f"taef2_{side}.pth")
    source = locate_vae(str(tmp_path / "taef2_decoder.pth"), allow_pickle=True)
    assert [path.name for path in source.weight_files] == ["taef2_decoder.pth", "taef2_encoder.pth"]
    assert load_module(source)
    with pytest.raises(UsageError, match="is a pickled file"):
        locate_vae(str(tmp_path / "taef2_decoder.pth"))
