"""Folders for what is needed while a run goes on: nobody else's, and gone with it, at the latest with the next run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tvae.pipeline.errors import OutputError
from tvae.pipeline.files import staging
from tvae.pipeline.files.staging import scratch_folder

KILLED = """
import os, signal, sys
from tvae.pipeline.files.staging import scratch_folder
with scratch_folder(sys.argv[1]) as folder:
    (folder / "meeting").mkdir()
    (folder / "meeting" / "file").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_is_gone_after_the_block(tmp_path: Path) -> None:
    def fails() -> None:
        with scratch_folder(str(tmp_path)) as folder:
            (folder / "file").touch()
            assert [*tmp_path.iterdir()] == [folder]
            if os.name != "nt":
                assert folder.stat().st_mode & 0o777 == 0o700
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert [*tmp_path.iterdir()] == []


@pytest.mark.skipif(os.name == "nt", reason="processes are asked for otherwise")
def test_the_next_removes_what_a_killed_run_left(tmp_path: Path) -> None:
    paths = os.pathsep.join(path for path in sys.path if path)
    program = [sys.executable, "-P", "-c", KILLED, str(tmp_path)]
    killed = subprocess.run(program, env=os.environ | {"PYTHONPATH": paths}, check=False)
    assert killed.returncode < 0
    (left,) = tmp_path.iterdir()
    staging._remove_left.cache_clear()
    with scratch_folder(str(tmp_path)) as folder:
        staging._remove_left.cache_clear()
        with scratch_folder(str(tmp_path)) as other:  # one of a process that lives stays
            assert {*tmp_path.iterdir()} == {folder, other}
    assert not left.exists()


def test_a_folder_of_such_a_name_that_holds_no_mark_stays(tmp_path: Path) -> None:
    theirs = tmp_path / ".tvae-1-01234567-0123456789ab.tmp" / "mine.txt"
    theirs.parent.mkdir()
    theirs.touch()
    os.utime(theirs.parent, (1, 1))
    with scratch_folder(str(tmp_path)):
        assert theirs.exists()


def test_where_none_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"), scratch_folder(str(tmp_path / "file")):
        pass
