"""Where the file goes, and what it never replaces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tvae.pipeline.comfyui.install import NAME, install
from tvae.pipeline.errors import OutputError, UsageError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "ComfyUI"
    (folder / "custom_nodes").mkdir(parents=True)
    (folder / "nodes.py").write_text("# theirs")
    return folder


@pytest.mark.parametrize("named", [".", "custom_nodes"])
def test_where_it_goes(home: Path, named: str) -> None:
    path, written = install(home / named)
    assert path.resolve() == (home / "custom_nodes" / NAME).resolve()
    assert written
    assert [p.name for p in (home / "custom_nodes").iterdir()] == [NAME]
    assert len(path.read_text().splitlines()) < 20
    assert install(home / named) == (path, False)


def test_from_inside_custom_nodes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home / "custom_nodes")
    install(Path())
    assert (home / "custom_nodes" / NAME).is_file()


def test_other_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "photos" / "custom_nodes").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    for name in ("missing", "file", ".", "photos", "photos/custom_nodes"):
        with pytest.raises(UsageError, match="ComfyUI's"):
            install(tmp_path / name)
    assert [*tmp_path.rglob(NAME)] == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no fifos there")
def test_a_fifo_is_not_waited_for(home: Path) -> None:
    os.mkfifo(home / "custom_nodes" / NAME)
    with pytest.raises(UsageError, match="not a regular file; move it away"):
        install(home, overwrite=True)


def test_a_large_file_is_not_ours(home: Path) -> None:
    (home / "custom_nodes" / NAME).write_bytes(bytes(2 << 20))
    with pytest.raises(UsageError, match="move it away"):
        install(home, overwrite=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_of_the_users_stays(home: Path, overwrite: bool) -> None:
    path = home / "custom_nodes" / NAME
    path.write_bytes(b"# mine\xff")
    with pytest.raises(UsageError, match="move it away"):
        install(home, overwrite=overwrite)
    assert path.read_bytes() == b"# mine\xff"
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match="move it away"):
        install(home, overwrite=overwrite)


def test_another_version_of_ours(home: Path) -> None:
    path, _ = install(home)
    text = path.read_text()
    path.write_text(text + "# of an older version\n")
    with pytest.raises(UsageError, match="--overwrite"):
        install(home)
    assert install(home, overwrite=True) == (path, True)
    assert path.read_text() == text


def test_a_folder_that_takes_no_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OutputError, match="No space left"):
        install(home)
    assert [*(home / "custom_nodes").iterdir()] == []


def test_without_tvae_it_says_what_to_do(home: Path) -> None:
    path, _ = install(home)
    ran = subprocess.run([sys.executable, "-S", "-I", path], capture_output=True, text=True, check=False)
    told = f"ImportError: tvae is not installed in ComfyUI's Python, {sys.executable}; install it there"
    assert ran.stderr.splitlines()[-1] == told
