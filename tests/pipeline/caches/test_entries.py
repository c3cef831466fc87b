"""Every trainer's own files, written and read back: the same source, frames and values."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
import torch
from cache_subjects import files_of

from tvae.pipeline.caches import TRAINERS
from tvae.pipeline.caches.spec import Entry, Piece
from tvae.pipeline.files.stored import write_stored
from tvae.pipeline.files.tensor_header import read_header
from tvae.pipeline.latents.foreign import tensors_in

READ = {name: found for name, found in TRAINERS.items() if found.form is None}
"""Trainers whose caches are read, too."""
EVERY = [(trainer, one.name) for trainer, found in READ.items() for one in found.architectures]


def read(trainer: str, folder: Path, place: str) -> tuple[Entry | None, list[list[torch.Tensor]]]:
    path = folder / place
    texts = read_header(path).metadata if path.suffix == ".safetensors" else {}
    found = TRAINERS[trainer]
    return found.entry(PurePosixPath(place), texts), [[*one] for one in found.values(tensors_in(path))]


@pytest.mark.parametrize(("trainer", "architecture"), EVERY)
def test_they_come_back(tmp_path: Path, trainer: str, architecture: str) -> None:
    found = TRAINERS[trainer]
    clips = next(one for one in found.architectures if one.name == architecture).clips
    for flip in (False, True) if found.flips else (False,):
        files = files_of(trainer, architecture, flip=flip)
        latents: list[torch.Tensor] = []
        for number, (place, stored) in enumerate(files.items()):
            write_stored(tmp_path / place, stored)
            entry, (values,) = read(trainer, tmp_path, place)
            assert entry is not None
            assert (entry.folder, entry.stem) == (PurePosixPath("sub"), None if trainer == "simpletuner" else "a.b")
            assert entry.architecture in (architecture, *([None] if trainer in ("simpletuner", "comfy") else []))
            assert entry.size in ((100, 80), None)
            assert entry.frames is None
            assert entry.mirrored == (number == 1)
            latents += values
        assert [one.shape[1:] for one in latents] == [(1, 6, 8)] * (1 + flip)
        assert [float(one.max()) for one in latents] == [0.0, 1.0][: 1 + flip]
    if clips:
        ((place, stored),) = files_of(trainer, architecture, piece=Piece(30, 9, 16.0), frames=3).items()
        write_stored(tmp_path / place, stored)
        entry, ((value,),) = read(trainer, tmp_path, place)
        assert entry is not None
        assert (entry.stem, entry.frames) == ("a.b", (30, 9) if trainer == "musubi" else None)
        assert value.shape[1:] == (3, 6, 8)


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("name", ["a.png", "a.npz", "a_te.safetensors", "latents.pt", "x/a.json", "a.txt"])
def test_other_files_are_none_of_theirs(trainer: str, name: str) -> None:
    assert TRAINERS[trainer].entry(PurePosixPath(name), {"format": "pt"}) is None


def test_several_sizes_in_a_file_of_kohya() -> None:
    a, b = torch.zeros(16, 6, 8), torch.ones(16, 8, 6)
    tensors = {"latents_6x8": a, "original_size_6x8": a, "latents_8x6": b, "latents_flipped_8x6": b, "crop_ltrb_8x6": a}
    found = TRAINERS["kohya"].values(tensors)
    shapes = [[tuple(one.shape) for one in values] for values in found]
    assert shapes == [[(16, 1, 6, 8)], [(16, 1, 8, 6), (16, 1, 8, 6)]]
