"""Files of latents as samplers, ComfyUI and trainers write them, and a small VAE that decodes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tiny_vaes import TINY
from torch import Tensor

from tvae.pipeline.jobs import Event, Job, run_job

__all__ = ["WRITERS", "decode", "latents_of", "numpys", "saved_model"]

MARKER = {"latent_format_version_0": torch.tensor([])}


def numpys(path: Path, **arrays: Tensor) -> None:
    np.savez(path, **{name: value.numpy() for name, value in arrays.items()})


WRITERS: dict[str, Callable[[Path, Tensor], object]] = {
    "comfy.latent": lambda path, z: save_file({"latent_tensor": z, **MARKER}, path),
    "first.latent": lambda path, z: save_file({"latent_tensor": z * 0.18215}, path),
    "sampler.safetensors": lambda path, z: save_file({"latents": z[0], "noise": z[0] * 2}, path),
    "one_name.safetensors": lambda path, z: save_file({"whatever": z}, path),
    "dictionary.pt": lambda path, z: torch.save({"samples": z, "seed": 3}, path),
    "bare.pth": lambda path, z: torch.save(z[0], path),
    "double.pt": lambda path, z: torch.save(z.double(), path),
    "array.npy": lambda path, z: np.save(path, z[0].numpy()),
    "whole.npy": lambda path, z: np.save(path, z.numpy()),
    "kohya.npz": lambda path, z: numpys(path, latents=z[0], original_size=torch.tensor([40, 48])),
    "fortran.npy": lambda path, z: np.save(path, np.asfortranarray(z.numpy())),
    "UPPER.PT": lambda path, z: torch.save(z, path),
}


def saved_model(folder: Path) -> Any:
    """With ``folder``, where it lies."""
    built: Any = TINY["AutoencoderKL"].build(1)
    built.save_pretrained(folder)
    built.folder = folder
    return built


def latents_of(model: Any, seed: int = 0, height: int = 6, width: int = 5) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(1, model.config.latent_channels, height, width, generator=made)


def decode(model: Any, *inputs: Path, out: Path, space: Any = "raw", **fields: Any) -> list[Event]:
    events: list[Event] = []
    vae = str(model.folder)
    job = Job(
        "decode", tuple(map(str, inputs)), output=str(out), vae=vae, latents_space=space, dtype="float32", **fields
    )
    run_job(job, events.append)
    return events
