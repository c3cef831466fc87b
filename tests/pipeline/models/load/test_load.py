"""Finding and loading VAEs from folders that the tests make."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file

from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.load import load_module, load_weights, locate_vae
from tvae.presets import builtin

PLAIN = "diffusion_pytorch_model.safetensors"


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_folder(vae: Path, model: Any) -> None:
    source = locate_vae(str(vae))
    assert (source.id, source.class_name, source.folder, source.variant) == (str(vae), "AutoencoderKL", vae, None)
    assert source.config["latent_channels"] == 4
    assert source.weights_sha256 == hashlib.sha256((vae / PLAIN).read_bytes()).hexdigest()
    assert source.keys_are_current
    assert source.stored_dtype == torch.float32
    weights, expected = load_weights(source), model.state_dict()
    assert weights.keys() == expected.keys() == source.tensors.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert list(load_weights(source, ["quant_conv.bias", "absent"])) == ["quant_conv.bias"]


def test_load_module_is_the_model(vae: Path, model: Any) -> None:
    module = load_module(locate_vae(str(vae)), torch.float32)
    x = torch.randn(1, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(module(x).sample, model(x).sample)
    assert not module.training
    assert not any(p.requires_grad for p in module.parameters())
    low = load_module(locate_vae(str(vae)), torch.bfloat16)
    for name, value in low.state_dict().items():
        assert torch.equal(value, model.state_dict()[name].to(torch.bfloat16)), name


def test_stored_type_is_the_default(vae: Path, model: Any) -> None:
    save_file({name: value.half() for name, value in model.state_dict().items()}, vae / PLAIN)
    source = locate_vae(str(vae))
    assert source.stored_dtype == torch.float16
    assert next(load_module(source).parameters()).dtype == torch.float16


@pytest.mark.parametrize("name", ["vae", "movq", "vqvae"])
def test_a_pipelines_folder(saved: Path, tmp_path: Path, name: str) -> None:
    pipeline = tmp_path / "pipeline"
    shutil.copytree(saved, pipeline / name)
    (pipeline / "model_index.json").write_text("{}")
    assert locate_vae(str(pipeline)).folder == pipeline / name


def test_shards(model: Any, tmp_path: Path) -> None:
    folder = tmp_path / "sharded"
    model.save_pretrained(folder, max_shard_size="20KB")
    source = locate_vae(str(folder))
    assert len(source.weight_files) > 1
    weights, expected = load_weights(source), model.state_dict()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert torch.equal(load_module(source).state_dict()["decoder.conv_in.weight"], expected["decoder.conv_in.weight"])
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(source.weight_files)]
    assert source.weights_sha256 == hashlib.sha256("\n".join(digests).encode()).hexdigest()
    source.weight_files[0].unlink()
    with pytest.raises(UsageError, match=r"incomplete: .*00001-of"):
        locate_vae(str(folder))


def test_an_index_may_not_leave_its_folder(vae: Path) -> None:
    (vae / PLAIN).unlink()
    index = {"weight_map": {"a": "../elsewhere.safetensors"}}
    (vae / f"{PLAIN}.index.json").write_text(json.dumps(index))
    with pytest.raises(UsageError, match="outside of its folder"):
        locate_vae(str(vae))


def test_a_variant_serves_when_the_plain_one_is_missing(model: Any, tmp_path: Path) -> None:
    folder = tmp_path / "half"
    copy.deepcopy(model).half().save_pretrained(folder, variant="fp16")
    source = locate_vae(str(folder))
    assert (source.variant, [p.name for p in source.weight_files]) == ("fp16", [PLAIN.replace(".safe", ".fp16.safe")])
    assert next(load_module(source).parameters()).dtype == torch.float16
    save_file({"x": torch.zeros(1)}, folder / PLAIN)
    assert locate_vae(str(folder)).variant is None


def test_old_attention_names_go_through_the_module(vae: Path, model: Any) -> None:
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    weights = load_file(vae / PLAIN)
    for name in list(weights):
        for new, was in old.items():
            if f".{new}." in name:
                weights[name.replace(f".{new}.", f".{was}.")] = weights.pop(name)
    save_file(weights, vae / PLAIN, metadata={"format": "pt"})
    source = locate_vae(str(vae))
    assert not source.keys_are_current
    name = "decoder.mid_block.attentions.0.to_out.0.weight"
    assert torch.equal(load_module(source).state_dict()[name], model.state_dict()[name])


def test_config_digest_leaves_out_notes(vae: Path) -> None:
    before = locate_vae(str(vae)).config_sha256
    edit_config(vae, _diffusers_version="9.9", _name_or_path="elsewhere")
    assert locate_vae(str(vae)).config_sha256 == before
    edit_config(vae, latent_channels=5)
    assert locate_vae(str(vae)).config_sha256 != before


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def no_class(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "clip"}')


def pickled(folder: Path) -> None:
    (folder / PLAIN).rename(folder / "diffusion_pytorch_model.bin")


def no_weights(folder: Path) -> None:
    (folder / PLAIN).unlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (break_config, r"config\.json' is not valid JSON"),
        (no_config, r"there is no '.*config\.json'"),
        (no_class, r"config\.json' is not a diffusers model"),
        (pickled, "pickled weights only"),
        (no_weights, f"there is no {PLAIN}"),
    ],
)
def test_what_cannot_be_found(vae: Path, damage: Callable[[Path], None], reason: str) -> None:
    damage(vae)
    with pytest.raises(UsageError, match=reason) as error:
        locate_vae(str(vae))
    assert str(vae) in str(error.value)
    assert "\n" not in str(error.value)


def truncate(folder: Path) -> None:
    (folder / PLAIN).write_bytes((folder / PLAIN).read_bytes()[:-10])


def drop_key(folder: Path) -> None:
    weights = load_file(folder / PLAIN)
    del weights["quant_conv.bias"]
    save_file(weights, folder / PLAIN, metadata={"format": "pt"})


def other_shape(folder: Path) -> None:
    edit_config(folder, latent_channels=3)


def unknown_class(folder: Path) -> None:
    edit_config(folder, _class_name="AutoencoderKLX")


def not_an_autoencoder(folder: Path) -> None:
    edit_config(folder, _class_name="UNet2DModel")


def bad_value(folder: Path) -> None:
    edit_config(folder, down_block_types=["NoSuchBlock"])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "cannot read the weights .*damaged"),
        (drop_key, r"do not fit config\.json: missing quant_conv\.bias"),
        (other_shape, "cannot load AutoencoderKL from"),
        (unknown_class, r"config\.json': class 'AutoencoderKLX' is unknown to diffusers"),
        (not_an_autoencoder, r"config\.json': class 'UNet2DModel' is not an autoencoder"),
        (bad_value, "cannot load AutoencoderKL from .*NoSuchBlock"),
    ],
)
def test_what_cannot_be_loaded(vae: Path, damage: Callable[[Path], None], reason: str) -> None:
    damage(vae)
    with pytest.raises(UsageError, match=reason) as error:
        load_module(locate_vae(str(vae)))
    assert str(vae) in str(error.value)
    assert "\n" not in str(error.value)


def test_truncated_weights_read_directly(vae: Path) -> None:
    truncate(vae)
    with pytest.raises(UsageError, match=PLAIN):
        load_weights(locate_vae(str(vae)))


def test_names_that_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: pytest.fail("the network was asked"))
    for spec in [
        "buitlin",
        "./no/such",
        str(tmp_path / "no"),
        "~/no-such-vae",
        "a\\b",
        "C:\\models\\vae",
        "a/b.ckpt",
        "",
    ]:
        with pytest.raises(UsageError, match="no VAE"):
            locate_vae(spec)
    for name, reason in [("x.ckpt", "pickled"), ("x.safetensors", "is a file")]:
        (tmp_path / name).touch()
        with pytest.raises(UsageError, match=reason):
            locate_vae(str(tmp_path / name))


def test_the_built_in_one() -> None:
    folder = Path(builtin.__file__).parent
    if not (folder / PLAIN).is_file():
        pytest.skip("the built-in VAE is not trained yet")
    source = locate_vae("builtin")
    assert (source.id, source.folder, source.class_name) == ("builtin", folder, "AutoencoderKL")
    assert source.keys_are_current


@pytest.mark.slow
def test_locating_and_reading_needs_no_diffusers(vae: Path) -> None:
    code = (
        "import sys; from tvae.pipeline.models.load import *; s = locate_vae(sys.argv[1]); load_weights(s)\n"
        "from tvae.pipeline.models.space import space_of; space_of(s)\n"
        "print([m for m in ('diffusers', 'huggingface_hub') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code, str(vae)], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
