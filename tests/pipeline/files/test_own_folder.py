"""Folders of a run's own: links that stand in their place are neither written nor emptied."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tvae.pipeline.errors import OutputError
from tvae.pipeline.files.own_folder import clear_folder
from tvae.pipeline.media import Frame, PictureSpec, open_parted_writer
from tvae.pipeline.media.parted_write import PartedVideoWriter

LIKE = PictureSpec(64, 64, Fraction(1, 1000), Fraction(25))
FRAME = np.zeros((64, 64, 3), np.uint8)


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """A folder of somebody else, whose files have names like ours."""
    folder = tmp_path / "others"
    folder.mkdir()
    for name in ("diary.txt", "000000.packets", "000000.safetensors", "index.json", "streams.mp4", "state.safetensors"):
        (folder / name).write_text(name)
    return folder


def link(at: Path, to: Path) -> None:
    try:
        at.symlink_to(to, target_is_directory=True)
    except OSError:
        pytest.skip("no links can be made here")


def unharmed(folder: Path) -> bool:
    return len(list(folder.iterdir())) == 6 and all(path.read_text() == path.name for path in folder.iterdir())


def parted(folder: Path, frames: int = 1) -> PartedVideoWriter:
    with open_parted_writer(folder / "a.mp4", LIKE) as writer:
        for number in range(frames):
            writer.write(Frame(FRAME, number * 40, 40))
        writer.commit()
    return writer


def test_parts_of_a_film_behind_a_link(others: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    parts = parted(out).folder
    link(parts, others)
    with pytest.raises(OutputError, match=r"parts: it is a link, which tvae did not make; remove it"):
        parted(out)
    assert unharmed(others)
    parts.unlink()
    link(parts.with_name(parts.name.replace(".parts", "0.parts")), others)
    parted(out)
    assert unharmed(others)


def test_a_link_among_files_is_removed_alone(others: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / "folder.packets").mkdir(parents=True)
    link(mine / "a.packets", others)
    (mine / "b.packets").touch()
    (mine / "c.txt").touch()
    clear_folder(mine, lambda name: name.endswith(".packets"))
    assert sorted(os.listdir(mine)) == ["c.txt", "folder.packets"]
    assert unharmed(others)
    clear_folder(tmp_path / "not there", lambda name: True)
