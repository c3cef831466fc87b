"""VAEs in files of ``torch.save``: refused unless they are allowed, and then what a safetensors file gives."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from published_names import Weights, in_checkpoint, latent_diffusion, weights_of
from single_files import kl, written
from slow_but import slow_but

from tvae.pipeline import load_latents, load_vae, save_latents
from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.load import load_module, load_weights, locate_vae, values_of
from tvae.pipeline.models.space import space_of
from tvae.pipeline.models.weights_file import open_weights


@pytest.fixture(scope="module")
def weights() -> Weights:
    """Under Latent Diffusion's names."""
    return latent_diffusion(weights_of(kl().build()))


def pickled(weights: Any, folder: Path, name: str = "vae.pt") -> str:
    torch.save(weights, folder / name)
    return str(folder / name)


def views_of_one_storage(weights: Weights) -> Weights:
    """As an optimiser or a sharded trainer keeps them, and some of them transposed."""
    flat = torch.cat([value.reshape(-1) for value in weights.values()])
    found, at = {}, 0
    for name, value in weights.items():
        found[name] = flat[at : at + value.numel()].view(value.shape)
        at += value.numel()
    name = next(name for name, value in weights.items() if value.ndim == 4 and value.shape[0] == value.shape[1])
    return {**found, name: weights[name].transpose(0, 1).contiguous().transpose(0, 1)}


OTHERS = {"model.diffusion_model.x": torch.zeros(4), "conditioner.embedders.0.y": torch.zeros(2)}
EMA = {"model_ema.decay": torch.tensor(0.9), "model_ema.num_updates": torch.tensor(3)}


def in_training(weights: Weights) -> dict[str, Any]:
    """As a training framework writes the autoencoder: its average and its loss beside it."""
    average = {"model_ema." + name.replace(".", ""): value + 1 for name, value in weights.items()}
    loss = {"loss.logvar": torch.zeros(()), "loss.discriminator.main.0.weight": torch.zeros(3, 3, 4, 4)}
    return {"epoch": 3, "state_dict": {**weights, **average, **EMA, **loss}, "optimizer_states": [{"state": {}}]}


WRAPPED: dict[str, Callable[[Weights], Any]] = {
    "bare": dict,
    "state_dict": lambda weights: {"state_dict": weights, "global_step": 7},
    "model": lambda weights: {"model": weights, "iteration": 7},
    "views": views_of_one_storage,
    "parameters": lambda weights: {name: torch.nn.Parameter(value) for name, value in weights.items()},
    "training": in_training,
    "checkpoint": lambda weights: {"state_dict": {**in_checkpoint(weights, "first_stage_model.", OTHERS), **EMA}},
    "ComfyUI": lambda weights: in_checkpoint(weights, "vae.", OTHERS),
}


@pytest.mark.parametrize("how", slow_but(["bare", "checkpoint", "views"], WRAPPED))
def test_it_is_the_vae_of_a_safetensors_file(how: str, weights: Weights, tmp_path: Path) -> None:
    path = pickled(WRAPPED[how](weights), tmp_path)
    with pytest.raises(UsageError, match=r"vae\.pt' is a pickled file, .* as safetensors, or pass --allow-pickle"):
        locate_vae(path)
    found, plain = locate_vae(path, "sdxl", allow_pickle=True), locate_vae(str(written(weights, tmp_path)), "sdxl")
    assert (found.class_name, found.config_sha256, found.tensors) == (
        plain.class_name,
        plain.config_sha256,
        plain.tensors,
    )
    assert (values_of(found), space_of(found)) == (values_of(plain), space_of(plain))
    ours, theirs = load_weights(found), load_weights(plain)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert load_weights(found, ["decoder.conv_in.bias", "x"]).keys() == {"decoder.conv_in.bias"}
    assert len(found.weights_sha256) == 64


STORED = [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", slow_but([torch.float16, torch.float8_e4m3fn], STORED))
def test_types(dtype: torch.dtype, weights: Weights, tmp_path: Path) -> None:
    stored = {name: value.to(dtype) for name, value in weights.items()}
    found = locate_vae(pickled(stored, tmp_path), allow_pickle=True)
    assert values_of(found) == values_of(locate_vae(str(written(stored, tmp_path))))
    z = torch.randn(1, 4, 4, 5)
    with torch.no_grad():
        pictures = [
            load_module(source, torch.float32).decode(z).sample
            for source in (  # type: ignore[operator]
                found,
                locate_vae(str(written(stored, tmp_path))),
            )
        ]
    assert torch.equal(*pictures)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_equal_parts_of_a_tensor(parts: int, tmp_path: Path) -> None:
    """As attention's three projections in one."""
    value = torch.randn(6, 4)
    for path in (pickled({"w": value}, tmp_path), str(written({"w": value}, tmp_path))):
        with open_weights(Path(path)) as file:
            assert list(file.names()) == ["w"]
            found = [file.part("w", part, parts) for part in range(parts)]
        assert all(map(torch.equal, found, value.chunk(parts)))


def test_a_checkpoints_part_has_one_identity(weights: Weights, tmp_path: Path) -> None:
    """The bytes of the VAE's tensors, in either format, whatever is around them."""
    checkpoint = in_checkpoint(weights, "first_stage_model.", OTHERS)
    plain = locate_vae(str(written(checkpoint, tmp_path))).weights_sha256
    for n, other in enumerate((checkpoint, {**checkpoint, "model.more": torch.ones(9)})):
        assert locate_vae(pickled(other, tmp_path, f"{n}.ckpt"), allow_pickle=True).weights_sha256 == plain
    changed = {**checkpoint, "first_stage_model.quant_conv.bias": torch.ones(8)}
    assert locate_vae(pickled(changed, tmp_path, "c.ckpt"), allow_pickle=True).weights_sha256 != plain


def test_from_a_script(weights: Weights, tmp_path: Path) -> None:
    path = pickled(weights, tmp_path, "vae.PTH")
    with pytest.raises(UsageError, match="--allow-pickle"):
        load_vae(path)
    z = torch.randn(1, 4, 4, 4)
    plain = load_vae(str(written(weights, tmp_path))).decode(z).sample
    assert torch.equal(load_vae(path, allow_pickle=True).decode(z).sample, plain)
    latents = tmp_path / "z.safetensors"
    with pytest.raises(UsageError, match="--allow-pickle"):
        save_latents(latents, z[0], vae=path)
    assert load_latents(save_latents(latents, z[0], vae=path, allow_pickle=True)).meta.vae.path == path


@pytest.mark.long
def test_what_is_no_vae_is_one_line(weights: Weights, tmp_path: Path) -> None:
    bias = "decoder.conv_in.bias"
    listed: dict[str, Any] = {**weights, bias: weights[bias].tolist()}
    for content, reason in (
        (listed, r"1 missing \(decoder\.conv_in\.bias\)$"),
        ({**weights, bias: weights[bias].to_sparse()}, r"1 missing \(decoder\.conv_in\.bias\)$"),
        ({**weights, "decoder.more": torch.ones(1)}, r"1 left over \(decoder\.more\)$"),
        ({name: value for name, value in in_training(weights)["state_dict"].items() if "ema" in name}, "no VAE"),
        ({"ema": weights, "model": weights}, r"several sets of weights \(ema, model\)"),
        (torch.nn.Linear(1, 1), "objects of Python's"),
    ):
        with pytest.raises(UsageError, match=reason) as error:
            locate_vae(pickled(content, tmp_path), allow_pickle=True)
        assert "\n" not in str(error.value)
        assert "vae.pt" in str(error.value)
    whole = Path(pickled(weights, tmp_path)).read_bytes()
    for content in (whole[:-30], whole[:1000], b"", b"PK\3\4", whole[100:]):
        (tmp_path / "cut.ckpt").write_bytes(content)
        with pytest.raises(UsageError, match=r"cut\.ckpt' is a file that cannot be read: (not a whole file|damaged)"):
            locate_vae(str(tmp_path / "cut.ckpt"), allow_pickle=True)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "fifo.pt")
        with pytest.raises(UsageError, match="not a regular file"):
            locate_vae(str(tmp_path / "fifo.pt"), allow_pickle=True)
    with pytest.raises(UsageError, match=r"no VAE 'none\.pt'"):
        locate_vae("none.pt", allow_pickle=True)


def test_a_file_that_is_changed_while_it_is_read(weights: Weights, tmp_path: Path) -> None:
    path = pickled(weights, tmp_path)
    source = locate_vae(path, allow_pickle=True)
    assert source.tensors
    Path(path).write_bytes(Path(path).read_bytes()[:5000])
    with pytest.raises(UsageError, match="cannot read the weights"):
        load_weights(source)
    pickled({"another": torch.zeros(3)}, tmp_path)
    with pytest.raises(UsageError, match=r"it has no tensor '.*' any more"):
        load_weights(source)
