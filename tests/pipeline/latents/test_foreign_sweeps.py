"""Other programs' files, damaged at random, and their shapes, drawn at random and packed by diffusers' own code."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tvae.pipeline.errors import InputError
from tvae.pipeline.latents.foreign import Wanted, tensors_in
from tvae.pipeline.latents.foreign.shapes import cut_apart

WRITERS: dict[str, Callable[[Path, Tensor], object]] = {
    "a.safetensors": lambda path, x: save_file({"latents": x}, path),
    "a.npy": lambda path, x: np.save(path, x.numpy()),
    "a.npz": lambda path, x: np.savez(path, latents=x.numpy()),
    "packed.npz": lambda path, x: np.savez_compressed(path, latents=x.numpy()),
    "a.pt": lambda path, x: torch.save({"latents": x}, path),
    "old.pth": lambda path, x: torch.save({"latents": x}, path, _use_new_zipfile_serialization=False),
}


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Cut off, or with other bytes, half of the time among the first ones."""
    kind, found = rng.randrange(3), bytearray(content)
    if kind == 0:
        return content[: rng.randrange(len(content))]
    reach = len(found) if kind == 1 else min(200, len(found))
    for _ in range(rng.randint(1, 4)):
        found[rng.randrange(reach)] = rng.randrange(256)
    return bytes(found)


@pytest.mark.filterwarnings("ignore")  # numpy's and torch's, of what the damage looks like
@pytest.mark.parametrize("name", WRITERS)
def test_damage_is_one_line_or_tensors(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name, torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(0)))
    whole, refused = (tmp_path / name).read_bytes(), 0
    for seed in range(400):
        path = tmp_path / f"damaged{Path(name).suffix}"
        path.write_bytes(damaged(whole, random.Random(seed)))
        try:
            found = tensors_in(path)
        except InputError as error:
            lines = str(error).splitlines()
        else:
            assert all(isinstance(value, Tensor) for value in found.values())
            continue
        refused += 1
        assert [str(path) in line for line in lines] == [True], "one line that names the file"
        assert "files ending in" not in lines[0], "its ending is not what is wrong"
    assert refused > 100


@pytest.mark.parametrize("seed", range(60))
def test_shapes(seed: int) -> None:
    rng = random.Random(seed)
    channels, several = rng.choice((4, 12, 16, 32)), rng.randint(1, 3)
    height, width, frames = 2 * rng.randint(1, 9), 2 * rng.randint(1, 9), rng.randint(1, 5)
    pictures = torch.randn(several, channels, height, width)
    clips = torch.randn(several, channels, frames, height, width)

    def cut(latents: Tensor, of_clips: bool, grid: tuple[int, int] | None = None) -> list[Tensor]:
        return cut_apart(latents, Wanted(channels, of_clips, grid), "a.npy")

    flux = pytest.importorskip("diffusers").FluxPipeline
    packed = flux._pack_latents(pictures, several, channels, height, width)
    rows = pictures.flatten(2).transpose(1, 2)  # Flux 2
    for tokens in (packed, rows):
        for found in (cut(tokens, False, (width, height)), [cut(x, False, (width, height))[0] for x in tokens]):
            assert all(map(torch.equal, found, pictures.unsqueeze(2).unbind(0)))
            assert len(found) == several
    either = rng.random() < 0.5
    for given, of_clips, wanted in (
        (pictures, False, pictures.unsqueeze(2)),
        (pictures[0], either, pictures[:1].unsqueeze(2)),
        (clips, either, clips),
        (clips[0], True, clips[:1]),
    ):
        found = cut(given, of_clips)
        assert len(found) == len(wanted)
        assert all(map(torch.equal, found, wanted.unbind(0)))
    with pytest.raises(InputError, match=f"this VAE has {channels + 1} channels"):
        cut_apart(clips, Wanted(channels + 1, True), "a.npy")
