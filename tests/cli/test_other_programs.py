"""Latents of other programs, from the shell: what a file holds, and its picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from foreign_files import WRITERS, latents_of, saved_model
from PIL import Image
from program import invoke
from safetensors.torch import save_file


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def call(*words: str) -> tuple[int, str, str]:
    done = invoke([*words])
    return done.exit_code, done.stdout, done.stderr


def test_comfys_file_decodes_in_one_line() -> None:
    model = saved_model(Path("vae"))
    z = latents_of(model)
    WRITERS["comfy.latent"](Path("a.latent"), z)
    assert call("decode", "a.latent", "--vae", "vae", "--space", "raw", "-o", "a.png")[0] == 0
    with torch.no_grad():
        own = ((model.decode(z).sample[0].permute(1, 2, 0) / 2 + 0.5).clamp(0, 1) * 255).round()
    assert np.abs(np.asarray(Image.open("a.png")).astype(float) - own.numpy()).max() <= 1


@pytest.mark.parametrize("words", [["--space", "raw"], ["--key", "a", "--vae", "v"], ["--size", "8x8"]])
def test_what_is_missing_is_said_before_any_work(words: list[str]) -> None:
    Path("a.latent").write_bytes(b"")
    code, _, told = call("decode", "a.latent", *words)
    assert code == 2
    assert "pass --" in told


@pytest.mark.parametrize("name", ["comfy.latent", "kohya.npz", "dictionary.pt", "sampler.safetensors"])
def test_inspect_tells_the_tensors(name: str) -> None:
    model = saved_model(Path("vae"))
    WRITERS[name](Path(name), latents_of(model))
    code, told, _ = call("inspect", name)
    assert code == 0
    assert "of another program" in told
    assert "--vae and --space" in told
    found = json.loads(call("inspect", name, "--json")[1])
    assert found["type"] == "tensors"
    assert [4, 6, 5] in [spec["shape"][-3:] for spec in found["tensors"].values()]


def test_inspect_runs_no_pickle() -> None:
    torch.save(torch.nn.Linear(2, 2), "a.pt")
    code, _, told = call("inspect", "a.pt")
    assert code == 3
    assert "objects of Python's" in told


@pytest.mark.parametrize("name", ["weights.safetensors", "huge.latent"])
def test_inspect_reads_headers_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file of a tebibyte, which nothing has written, and of any type."""
    from safetensors import torch as reading

    def loaded(*_: object) -> None:
        raise AssertionError("its values were read")

    monkeypatch.setattr(reading, "load_file", loaded)
    monkeypatch.setattr(reading, "safe_open", loaded)
    size = 1 << 40
    tensors = {
        "model.layers.0.weight": {"dtype": "F8_E4M3", "shape": [1 << 20, 1 << 20], "data_offsets": [0, size]},
        "packed": {"dtype": "F4", "shape": [4, 2], "data_offsets": [size, size + 4]},
    }
    text = json.dumps(tensors).encode()
    with Path(name).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + size + 4)
    code, told, _ = call("inspect", name)
    assert (code, told.splitlines()[:3]) == (
        0,
        [
            f"{name}: 2 tensors of another program",
            "  model.layers.0.weight  1048576x1048576, float8_e4m3fn",
            "  packed  4x2, F4",
        ],
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float8_e5m2, torch.int16, torch.bool])
def test_inspect_names_types_as_torch_does(dtype: torch.dtype) -> None:
    value = torch.zeros(3).to(dtype)
    save_file({"a": value}, "a.safetensors")
    torch.save({"a": value}, "a.pt")
    for name in ("a.safetensors", "a.pt"):
        found = json.loads(call("inspect", name, "--json")[1])
        assert found["tensors"] == {"a": {"shape": [3], "dtype": str(dtype).removeprefix("torch.")}}
