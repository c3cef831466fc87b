"""The table of families tells the truth about every class in it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_vaes import TINY, result
from torch import nn

from tvae.pipeline.errors import UsageError
from tvae.pipeline.models import families
from tvae.pipeline.models.families import FAMILIES, describe
from tvae.pipeline.models.geometry import geometry_of
from tvae.pipeline.models.reference import call_reference, reference_mode


def _never() -> nn.Module:
    raise AssertionError("a listed class is not built to be measured")


def test_the_tests_cover_every_family() -> None:
    assert set(FAMILIES) == set(TINY)
    assert [row["class_name"] for row in describe()] == list(FAMILIES)


@pytest.mark.parametrize("family", TINY)
def test_geometry_agrees_with_what_encode_returns(family: str) -> None:
    tiny = TINY[family]
    model: Any = tiny.build()
    geometry = geometry_of(family, model.config, _never)
    x = tiny.input("encode", 4, 3)
    with torch.no_grad(), reference_mode(model):
        latents = result(call_reference(model, "encode", x))
    has_moments = latents.shape[1] == 2 * geometry.latent_channels
    assert latents.shape[1] in (geometry.latent_channels, 2 * geometry.latent_channels)
    assert has_moments == (not FAMILIES[family].point)
    assert x.shape[1] == geometry.in_channels
    assert [n // geometry.spatial for n in x.shape[-2:]] == list(latents.shape[-2:])
    if x.ndim == 5:
        assert geometry.temporal is not None
        frames = x.shape[2]
        assert (frames - geometry.lead) % geometry.temporal == 0
        assert latents.shape[2] == geometry.lead + (frames - geometry.lead) // geometry.temporal


def test_defaults_of_a_configuration_that_names_nothing() -> None:
    """What diffusers fills in for missing keys; released configurations leave many out."""
    wan = geometry_of("AutoencoderKLWan", {}, _never)
    assert (wan.spatial, wan.temporal, wan.lead, wan.latent_channels) == (8, 4, 1, 16)
    assert geometry_of("AutoencoderKLWan", {"patch_size": 2, "z_dim": 48}, _never).spatial == 16
    ltx = geometry_of("AutoencoderKLLTXVideo", {}, _never)
    assert (ltx.spatial, ltx.temporal, ltx.latent_channels) == (32, 8, 128)
    mochi = geometry_of("AutoencoderKLMochi", {}, _never)
    assert (mochi.spatial, mochi.temporal, mochi.in_channels) == (8, 6, 3)


def test_an_unlisted_image_vae_is_measured() -> None:
    class Encoded:
        def __init__(self, mean: torch.Tensor) -> None:
            self.mean = mean

    class Unlisted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Conv2d(3, 5, 4, 4)

        def encode(self, x: torch.Tensor, return_dict: bool = True) -> Any:
            return (Encoded(self.down(x)),)

    geometry = geometry_of("Unlisted", {}, Unlisted)
    assert (geometry.spatial, geometry.latent_channels, geometry.temporal) == (4, 5, None)


def test_an_unlisted_video_vae_is_refused() -> None:
    class Clips(nn.Module):
        def encode(self, x: torch.Tensor, return_dict: bool = True) -> Any:
            raise ValueError("five dimensions, please")

    with pytest.raises(UsageError, match=r"Clips.*tvae models"):
        geometry_of("Clips", {}, Clips)


def test_a_family_is_found_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from tvae.pipeline.models.families.family import Family, LatentGeometry\n"
        "FAMILIES = [Family('MyVAE', 'image', lambda config: LatentGeometry(8))]\n"
    )
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "tvae.pipeline.models.families.mine", raising=False)
    found = families._found()
    assert found.keys() - FAMILIES.keys() == {"MyVAE"}
    assert found["MyVAE"].geometry({}).spatial == 8


def test_every_family_says_what_it_is() -> None:
    for name, family in FAMILIES.items():
        assert family.class_name == name
        assert family.note
        assert not (family.steps.keys() & family.frames.keys()), "in steps, or as a whole"
