"""Latents know where the folder of their VAE was: they decode from another working directory, and by that very VAE."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tiny_vaes import TINY

from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.jobs import Event, ItemFailed, Job, run_job
from tvae.pipeline.latents import open_latents


def saved(folder: Path, seed: int) -> Path:
    TINY["AutoencoderTiny"].build(seed).save_pretrained(folder)  # type: ignore[operator]
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a VAE, and latents that name it by a relative path."""
    there = tmp_path / "here"
    there.mkdir()
    saved(there / "models" / "vae", 1)
    monkeypatch.chdir(there)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)).save("a.png")
    assert run_job(Job("encode", ("a.png",), output="out", vae="models/vae"), lambda _: None).done == 1
    return there


def decoded(latents: Path, out: Path, vae: str | None = None) -> list[Exception | None]:
    """The error of each item that failed."""
    events = list[Event]()
    run_job(Job("decode", (str(latents),), output=str(out), vae=vae), events.append)
    return [event.cause for event in events if isinstance(event, ItemFailed)]


def test_from_another_directory(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert decoded(here / "out", tmp_path / "first") == []
    other = tmp_path / "other"
    saved(other / "models" / "vae", 2)  # another VAE of the same name
    monkeypatch.chdir(other)
    assert decoded(here / "out", tmp_path / "second") == []
    first, second = (np.asarray(Image.open(tmp_path / n / "a.png")) for n in ("first", "second"))
    assert (first == second).all()
    assert open_latents(here / "out" / "a.png.safetensors").meta.vae.id == "models/vae"


@pytest.mark.slow
def test_a_folder_that_moved(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = tmp_path / "moved"
    shutil.move(here, moved)
    monkeypatch.chdir(moved)  # where the relative name leads to it
    assert decoded(moved / "out", tmp_path / "first") == []
    monkeypatch.chdir(tmp_path)
    (error,) = _refused(moved / "out", tmp_path / "second")
    assert "models/vae" in str(error)
    assert "pass --vae" in str(error)
    assert decoded(moved / "out", tmp_path / "third", vae=str(moved / "models" / "vae")) == []


def _refused(latents: Path, out: Path) -> list[Exception]:
    found = [error for error in decoded(latents, out) if error is not None]
    assert all(isinstance(error, InputError) for error in found)
    return found


def test_another_vae_at_its_place_is_refused(here: Path, tmp_path: Path) -> None:
    shutil.rmtree(here / "models")
    saved(here / "models" / "vae", 3)
    (error,) = _refused(here / "out", tmp_path / "out")
    assert isinstance(error, InputError)


def test_another_vae_where_it_is_allowed(here: Path, tmp_path: Path) -> None:
    """As a float16 copy is, or a finetuned decoder; not one of another geometry."""
    other = saved(tmp_path / "other", 2)
    (refused,) = decoded(here / "out", tmp_path / "refused", str(other))
    assert isinstance(refused, InputError)
    assert "--allow-other-vae" in str(refused)
    job = Job("decode", (str(here / "out"),), output=str(tmp_path / "taken"), vae=str(other), allow_other_vae=True)
    assert run_job(job, lambda _: None).done == 1
    taken = np.asarray(Image.open(tmp_path / "taken" / "a.png"))
    model = TINY["AutoencoderTiny"].build(2)
    z = load_file(here / "out" / "a.png.safetensors")["latents"][None].float()
    with torch.no_grad():
        own = model.decode(z).sample[0].permute(1, 2, 0)  # type: ignore[operator]
    assert np.abs(taken - ((own / 2 + 0.5).clamp(0, 1) * 255).numpy()).max() <= 1.5
    TINY["AutoencoderKL"].build(1).save_pretrained(tmp_path / "foreign")  # type: ignore[operator]
    job = Job("decode", job.inputs, output=str(tmp_path / "x"), vae=str(tmp_path / "foreign"), allow_other_vae=True)
    events = list[Event]()
    run_job(job, events.append)
    (failed,) = [event for event in events if isinstance(event, ItemFailed)]
    assert "this VAE has" in failed.error


def test_another_vae_must_be_named(here: Path) -> None:
    with pytest.raises(UsageError, match="pass --vae"):
        Job("decode", ("out",), allow_other_vae=True)
