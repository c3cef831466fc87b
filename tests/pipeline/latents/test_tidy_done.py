"""What a killed run leaves in a complete folder of latents goes with the next run that finds the folder complete."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from video_folders import PTS, latents, names_in, values, write

from tvae.pipeline.files.lock import one_writer
from tvae.pipeline.latents import LatentsMeta, VideoLatentsWriter, open_latents, tidy_done
from tvae.pipeline.latents.video_folder import PENDING, STATE

MINE, OTHER = "a" * 64, "b" * 64
COMPLETE = ["000000.safetensors", "000001.safetensors", "index.json"]


@pytest.fixture
def folder(tmp_path: Path, clip_meta: LatentsMeta) -> Path:
    folder = tmp_path / "clip.mp4.latents"
    write(folder, clip_meta)
    return folder


def killed(folder: Path, meta: LatentsMeta, fingerprint: str | None) -> None:
    """A run that was to replace the clip, and ended after its first part."""
    writer = VideoLatentsWriter(folder, meta)
    writer.add(latents(3, 9.0), PTS[:3], [3003] * 3)
    if fingerprint is not None:
        save_file({"generator": torch.zeros(1)}, writer.state_path, {"fingerprint": fingerprint})


@pytest.mark.parametrize("fingerprint", [None, MINE])
def test_what_nobody_goes_on_with_goes(folder: Path, clip_meta: LatentsMeta, fingerprint: str | None) -> None:
    killed(folder, clip_meta, fingerprint)
    tidy_done(folder, MINE)
    assert names_in(folder) == COMPLETE
    assert values(open_latents(folder)).tolist() == [0, 1, 2, 3, 4]


def test_a_run_with_other_options_goes_on(folder: Path, clip_meta: LatentsMeta) -> None:
    killed(folder, clip_meta, OTHER)
    tidy_done(folder, MINE)
    assert names_in(folder) == [PENDING, *COMPLETE]
    assert names_in(folder / PENDING) == [STATE, "000000.safetensors"]


def test_a_damaged_checkpoint_is_of_no_use(folder: Path, clip_meta: LatentsMeta) -> None:
    killed(folder, clip_meta, OTHER)
    state = folder / PENDING / STATE
    state.write_bytes(state.read_bytes()[:-1])
    tidy_done(folder, MINE)
    assert names_in(folder) == COMPLETE


def test_nothing_goes_while_another_run_is_at_work(folder: Path, clip_meta: LatentsMeta) -> None:
    killed(folder, clip_meta, MINE)
    with one_writer(folder, patience=0):
        tidy_done(folder, MINE)
    assert names_in(folder / PENDING) == [STATE, "000000.safetensors"]


def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    beside = tmp_path / "mine"
    beside.mkdir()
    (beside / "000000.safetensors").write_bytes(b"mine")
    (folder / PENDING).symlink_to(beside, target_is_directory=True)
    tidy_done(folder, MINE)
    assert names_in(beside) == ["000000.safetensors"]


def test_a_folder_that_cannot_be_locked_stays_as_it_is(folder: Path, clip_meta: LatentsMeta) -> None:
    killed(folder, clip_meta, MINE)
    with one_writer(folder, patience=0):
        (lock,) = (path for path in folder.parent.iterdir() if path != folder)
    lock.unlink(missing_ok=True)
    lock.mkdir()
    tidy_done(folder, MINE)
    assert names_in(folder / PENDING) == [STATE, "000000.safetensors"]
