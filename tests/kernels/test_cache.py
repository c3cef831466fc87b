"""The cache's folders are the user's alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tvae.kernels import cache

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs rights of POSIX")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache, "_root", lambda: tmp_path / "tvae")
    cache._warn.cache_clear()
    return tmp_path / "tvae"


def test_others_have_no_rights_whatever_the_umask(root: Path) -> None:
    before = os.umask(0)
    try:
        assert cache.is_private(cache.cache_folder("graphs"))
    finally:
        os.umask(before)
    assert [folder.stat().st_mode & 0o777 for folder in (root, root / "graphs")] == [0o700, 0o700]


def test_rights_to_read_are_taken_away(root: Path) -> None:
    (root / "graphs").mkdir(parents=True)
    (root / "graphs").chmod(0o755)
    assert cache.is_private(root / "graphs")
    assert (root / "graphs").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("which", ["tvae", "tvae/graphs"])
@pytest.mark.parametrize("how", ["written by others", "link", "another's"])
def test_what_others_can_write_is_not_used(
    which: str, how: str, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "graphs").mkdir(parents=True)
    root.chmod(0o700)
    folder = root.parent / which
    if how == "link":
        folder.rename(root.parent / "elsewhere")
        folder.symlink_to(root.parent / "elsewhere")
    elif how == "another's":
        owner = folder.stat().st_uid
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    else:
        folder.chmod(0o777)
    for _ in range(2):
        assert not cache.is_private(root / "graphs")
    (line,) = [record.getMessage() for record in caplog.records]
    assert "is not used" in line


def test_a_folder_that_cannot_be_made(root: Path) -> None:
    root.write_text("a file")
    assert not cache.is_private(root / "graphs")
