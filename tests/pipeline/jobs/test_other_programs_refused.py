"""Files of other programs that cannot be decoded: one clear line each, nothing run, nothing lost, the others done."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from foreign_files import WRITERS, decode, latents_of, numpys, saved_model
from torch import Tensor

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import ItemFailed, ItemPlanned, Job


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return saved_model(tmp_path_factory.mktemp("vae"))


class Harm:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harmed",)


BAD: dict[str, tuple[Callable[[Path, Tensor], object], str]] = {
    "channels.npy": (lambda path, z: np.save(path, torch.cat([z, z], 1)), "this VAE has 4 channels, the file 1 or 8"),
    "flat.npy": (lambda path, z: np.save(path, z.flatten()), "not [120]"),
    "empty.npy": (lambda path, z: np.save(path, z[:0]), "empty"),
    "tokens.npy": (lambda path, z: np.save(path, z[0].flatten(1).T[None]), "pass the picture's size with --size"),
    "nan.npy": (lambda path, z: np.save(path, z / 0 * 0), "are not finite"),
    "two.npz": (lambda path, z: numpys(path, a=z, b=z), "Pass --key; it has a [1, 4, 6, 5], b"),
    "numbers.npy": (lambda path, z: np.save(path, (z * 9).long()), "is of type torch.int64, and latents are floating"),
    "objects.npy": (lambda path, z: np.save(path, np.array([{"a": z}], object)), "objects of Python's"),
    "module.pt": (lambda path, z: torch.save(torch.nn.Linear(2, 2), path), "objects of Python's"),
    "harm.pt": (lambda path, z: path.write_bytes(pickle.dumps(Harm())), "objects of Python's"),
    "list.pt": (lambda path, z: torch.save([z], path), "a list instead of a tensor or a dictionary of them"),
    "cut.safetensors": (lambda path, z: path.write_bytes(b"\x40\0\0\0\0\0\0\0{"), "cannot read latents"),
    "cut.npz": (lambda path, z: path.write_bytes(b"PK\x03\x04"), "cannot read latents"),
    "cut.npy": (lambda path, z: path.write_bytes(b"\x93NUMPY\x01"), "cannot read latents"),
    "cut.pt": (lambda path, z: path.write_bytes(b"PK\x03\x04"), "cannot read latents"),
    "nothing.latent": (lambda path, z: path.write_bytes(b""), "cannot read latents"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_decoded_fails_alone(
    name: str, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write, message = BAD[name]
    write(tmp_path / name, latents_of(model))
    WRITERS["comfy.latent"](tmp_path / "good.latent", latents_of(model))
    events = decode(model, tmp_path / name, tmp_path / "good.latent", out=tmp_path / "out")
    (failed,) = [event for event in events if isinstance(event, ItemFailed)]
    assert message in failed.error
    assert name in failed.error
    assert "\n" not in failed.error
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["good.png"]
    assert not (tmp_path / "harmed").exists()


def test_a_size_is_for_tokens_alone(model: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", latents_of(model)[0].numpy())
    (failed,) = [e for e in decode(model, tmp_path / "a.npy", out=tmp_path, size=(64, 64)) if isinstance(e, ItemFailed)]
    assert "--size is for rows of tokens, [n, 4] or [n, 16]" in failed.error


def test_tokens_of_another_size(model: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", latents_of(model)[0].flatten(1).T.numpy())
    (failed,) = [e for e in decode(model, tmp_path / "a.npy", out=tmp_path, size=(64, 64)) if isinstance(e, ItemFailed)]
    assert "has 30 tokens, a picture of --size has" in failed.error


@pytest.mark.parametrize(
    "fields", [{"latents_space": "raw"}, {"vae": "x", "latents_key": "a"}, {"size": (8, 8)}, {"latents_space": "odd"}]
)
def test_what_is_not_said_is_not_guessed(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Job("decode", ("a.npy",), **fields)


@pytest.mark.parametrize("name", ["comfy.latent", "array.npy", "kohya.npz", "UPPER.PT"])
def test_without_a_space_the_line_says_what_to_do(name: str, model: Any, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name, latents_of(model))
    (failed,) = [e for e in decode(model, tmp_path / name, out=tmp_path, space=None) if isinstance(e, ItemFailed)]
    assert "pass --vae and --space" in failed.error
    assert "truncated" not in failed.error


def test_a_dry_run_names_all_outputs(model: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", torch.cat([latents_of(model), latents_of(model)]).numpy())
    events = decode(model, tmp_path / "a.npy", out=tmp_path / "out", dry_run=True)
    assert [e.output.name for e in events if isinstance(e, ItemPlanned)] == ["a-0000.png", "a-0001.png"]
    assert not (tmp_path / "out").exists()
