"""Single files that are no VAE, or one in part: one line that counts and names what differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from published_names import Weights, latent_diffusion, weights_of
from single_files import kl, written

from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.load import locate_vae


def lose(weights: Weights) -> None:
    del weights["decoder.conv_out.bias"], weights["encoder.mid.attn_1.q.weight"]


def add(weights: Weights) -> None:
    weights["decoder.extra.weight"] = torch.zeros(3)


def bend(weights: Weights) -> None:
    weights["decoder.up.0.block.0.conv2.weight"] = torch.zeros(32, 32, 1, 1)


def transpose(weights: Weights) -> None:
    weights["decoder.conv_in.weight"] = weights["decoder.conv_in.weight"].transpose(0, 1).contiguous()


def add_scale(weights: Weights) -> None:
    weights["scaled_fp8"] = torch.zeros(2)


def one_side(weights: Weights) -> None:
    for name in [name for name in weights if name.startswith("encoder.")][4:]:
        del weights[name]


def other_groups(weights: Weights) -> None:
    for name, value in [*weights.items()]:
        weights[name] = value[: len(value) - 1].contiguous() if value.ndim else value


def whole_numbers(weights: Weights) -> None:
    name = "decoder.conv_in.weight"
    weights[name] = (100 * weights[name]).to(torch.int8)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (whole_numbers, "is stored as I8, which tvae does not make weights of"),
        (
            lose,
            r"nearest is AutoencoderKL in Latent Diffusion's names: 2 missing \(encoder\.\S+q\.weight, decoder\S+\)$",
        ),
        (add, r"Latent Diffusion's names: 1 left over \(decoder\.extra\.weight\)$"),
        (bend, r"Latent Diffusion's names: 1 misshapen \(decoder\.up\.0\.block\.0\.conv2\.weight\)$"),
        (transpose, "misshapen"),
        (add_scale, r"1 left over \(scaled_fp8\)"),
        (one_side, "missing"),
        (other_groups, "Latent Diffusion's names, whose layers no such shapes have"),
    ],
)
def test_what_is_missing_or_left_over_is_counted(
    damage: Callable[[Weights], None], reason: str, tmp_path: Path
) -> None:
    weights = latent_diffusion(weights_of(kl().build()))
    damage(weights)
    path = written(weights, tmp_path)
    with pytest.raises(UsageError, match=reason) as error:
        locate_vae(str(path))
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_files_that_are_no_vae(tmp_path: Path) -> None:
    for weights in ({}, {"lora_unet.down.weight": torch.zeros(3)}, {"first_stage_model.x": torch.zeros(1)}):
        with pytest.raises(UsageError, match="of no VAE that tvae knows"):
            locate_vae(str(written(weights, tmp_path)))
    (tmp_path / "vae.gguf").write_bytes(b"GGUF")
    with pytest.raises(UsageError, match=r"is a file, but no safetensors"):
        locate_vae(str(tmp_path / "vae.gguf"))


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    path = written(latent_diffusion(weights_of(kl().build())), tmp_path)
    content = path.read_bytes()
    for damaged in (content[:-1], content[: len(content) // 2], content[:100], content[:5], b"", content + b"x"):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match="is a file that cannot be read") as error:
            locate_vae(str(path))
        assert "\n" not in str(error.value)


def test_claimed_sizes_cost_nothing(tmp_path: Path) -> None:
    """A sparse file of a terabyte whose shapes fit together as far as they are read."""
    shapes = {name: tuple(value.shape) for name, value in latent_diffusion(weights_of(kl().build())).items()}
    shapes["decoder.conv_in.weight"] = (1 << 20, 4, 1 << 8, 1 << 8)
    header, at = [], 0
    for name, shape in shapes.items():
        size = 4 * int(torch.Size(shape).numel())
        header.append(f'"{name}": {{"dtype": "F32", "shape": {list(shape)}, "data_offsets": [{at}, {at + size}]}}')
        at += size
    text = ("{" + ", ".join(header) + "}").encode()
    path = tmp_path / "huge.safetensors"
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    with pytest.raises(UsageError, match="misshapen"):
        locate_vae(str(path))
