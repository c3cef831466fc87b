"""One VAE in two files: known as one across types, layouts and checkpoints, and no other is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from published_names import Weights, in_checkpoint, latent_diffusion, old_attention, weights_of
from single_files import kl, written
from slow_but import slow_but

from tvae.pipeline.models.load import locate_vae, values_of
from tvae.pipeline.models.same_values import same_values
from tvae.pipeline.models.values_checksum import ROUNDED, values_checksums


@pytest.fixture(scope="module")
def weights() -> Weights:
    return weights_of(kl().build())


def of(weights: Weights, folder: Path) -> tuple[str, ...]:
    folder.mkdir(exist_ok=True)
    return values_of(locate_vae(str(written(weights, folder))))


def stored(weights: Weights, dtype: torch.dtype) -> Weights:
    return {name: value.to(dtype) for name, value in weights.items()}


@pytest.mark.parametrize("dtype", slow_but([*ROUNDED][:2], ROUNDED))
def test_a_copy_in_a_narrower_type_is_the_same(dtype: torch.dtype, weights: Weights, tmp_path: Path) -> None:
    original, copy = of(weights, tmp_path / "a"), of(latent_diffusion(stored(weights, dtype)), tmp_path / "b")
    assert original[0] != copy[0]
    assert same_values(original, copy)
    assert same_values(copy, original)
    widened = of(stored(stored(weights, dtype), torch.float32), tmp_path / "c")
    assert widened[0] == copy[0], "stored in a wider type again, values are what they were"


def test_layouts_and_checkpoints_are_the_same(weights: Weights, tmp_path: Path) -> None:
    expected = of(weights, tmp_path / "a")
    others = {"conditioner.embedders.0.x": torch.ones(3)}
    for n, names in enumerate(
        (latent_diffusion(weights), old_attention(weights), in_checkpoint(latent_diffusion(weights), "vae.", others))
    ):
        assert of(names, tmp_path / str(n)) == expected
    kl().build().save_pretrained(tmp_path / "folder")
    assert values_of(locate_vae(str(tmp_path / "folder"))) == expected


def test_other_values_are_another(weights: Weights, tmp_path: Path) -> None:
    """One value of one tensor, by more than any type loses; and tensors that changed places."""
    expected = of(weights, tmp_path / "a")
    for name in ("decoder.conv_out.bias", "encoder.conv_in.weight"):
        other = {key: value.clone() for key, value in weights.items()}
        other[name].view(-1)[0] += 1
        assert not same_values(of(other, tmp_path / "b"), expected)
        assert not same_values(of(stored(other, torch.float16), tmp_path / "b"), expected)
    swapped = {**weights, "quant_conv.bias": weights["quant_conv.bias"].flip(0)}
    assert not same_values(of(swapped, tmp_path / "b"), expected)


def test_two_narrow_copies_do_not_tell(weights: Weights, tmp_path: Path) -> None:
    half, brain = (of(stored(weights, dtype), tmp_path / "x") for dtype in (torch.float16, torch.bfloat16))
    assert not same_values(half, brain)
    assert not same_values((), half)
    assert not same_values((), ())


def test_remembered_until_the_file_changes(weights: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from tvae.pipeline.models import load

    path = written(weights, tmp_path)
    os.utime(path, ns=(10**18, 10**18))
    first = values_of(locate_vae(str(path)))
    monkeypatch.setattr(load, "values_checksums", lambda _weights: ("x",))
    assert values_of(locate_vae(str(path))) == first
    os.utime(path, ns=(10**18 + 10**10, 10**18 + 10**10))
    assert values_of(locate_vae(str(path))) == ("x",)


def test_of_a_checkpoint_the_vaes_part_counts(weights: Weights, tmp_path: Path) -> None:
    """Its bytes alone are read: another diffusion model around it is no other VAE."""
    digests = set[str]()
    for n, other in enumerate((0.0, 1.0)):
        (tmp_path / str(n)).mkdir()
        stored_in = in_checkpoint(latent_diffusion(weights), "vae.", {"model.x": torch.full((5,), other)})
        digests.add(locate_vae(str(written(stored_in, tmp_path / str(n)))).weights_sha256)
    assert len(digests) == 1
    changed = {**weights, "quant_conv.bias": weights["quant_conv.bias"] + 1}
    stored_in = in_checkpoint(latent_diffusion(changed), "vae.", {"model.x": torch.zeros(5)})
    assert locate_vae(str(written(stored_in, tmp_path))).weights_sha256 not in digests


def test_counters_do_not_count() -> None:
    tensors = [("a", torch.ones(2, 1)), ("n", torch.tensor(3))]
    assert values_checksums(tensors) == values_checksums([("a", torch.ones(2))])
