"""Temporary files: of the killed they are removed, of the living they stay."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tvae.pipeline.files import leftovers, names
from tvae.pipeline.files.atomic import is_temporary, temporary_path
from tvae.pipeline.files.leftovers import remove_leftovers

pytestmark = pytest.mark.skipif(os.name == "nt", reason="processes are asked for otherwise")


def test_of_whom_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    mine = temporary_path(tmp_path / "a.png")
    assert is_temporary(mine.name)
    dead = tmp_path / mine.name.replace(f"-{os.getpid()}-", f"-{gone.pid}-")
    users = tmp_path / "notes.tmp"
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(names, "here", lambda: "01234567")
        theirs, long_ago = (temporary_path(tmp_path / name) for name in "bc")
    for path in (mine, dead, users, theirs, long_ago):
        path.touch()
    os.utime(long_ago, (1, time.time() - leftovers.OLD_SECONDS - 60))
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {mine.name, users.name, theirs.name}
    remove_leftovers(tmp_path / "not there")
