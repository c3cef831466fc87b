"""Real names are those that the system gives, whether a folder is asked for one file or for many."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tvae.pipeline.jobs.places import RealNames


def link(at: Path, to: Path) -> None:
    try:
        at.symlink_to(to)
    except OSError:
        pytest.skip("links need a privilege here")


@pytest.mark.parametrize("seed", range(4))
def test_real_names_of_files_folders_and_links(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, folders = random.Random(seed), [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "c"]
    for folder in folders:
        folder.mkdir()
    link(tmp_path / "linked", folders[1])
    files = [folder / f"{n}.png" for folder in folders for n in range(50)]
    for path in files:
        path.write_bytes(b"")
    for n in range(20):
        link(rng.choice(folders) / f"link{n}", rng.choice([*files, *folders, tmp_path / "nothing"]))
    asked = [p for folder in (*folders, tmp_path / "linked", tmp_path) for p in folder.iterdir()]
    asked += [tmp_path / "gone" / f"{n}" for n in range(50)]
    asked += [Path("here.png"), Path(), Path(".."), tmp_path / "a" / ".." / "c" / "0.png", Path("/")]
    monkeypatch.chdir(tmp_path / "a")
    rng.shuffle(asked)
    real = RealNames()
    for path in asked:
        assert real(path) == os.path.normcase(os.path.realpath(path)), path


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs a folder that this user may not list")
def test_a_folder_that_may_be_entered_and_not_listed(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    (tmp_path / "there").write_bytes(b"")
    link(folder / "link", tmp_path / "there")
    folder.chmod(0o300)
    try:
        real = RealNames()
        for path in [folder / f"{n}" for n in range(50)] + [folder / "link"]:
            assert real(path) == os.path.normcase(os.path.realpath(path))
    finally:
        folder.chmod(0o700)
