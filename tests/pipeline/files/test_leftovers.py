"""What killed processes leave in folders of results is removed; what others have put there stays, whatever its name."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from job_files import photo
from killed_writer import killed_at
from program import invoke

from tvae.pipeline.files import leftovers
from tvae.pipeline.files.atomic import is_temporary, temporary_path
from tvae.pipeline.files.leftovers import remove_leftovers

pytestmark = pytest.mark.skipif(os.name == "nt", reason="processes are asked for otherwise")


def test_a_run_removes_what_a_killed_one_left_and_nothing_else(tmp_path: Path) -> None:
    (out := tmp_path / "out").mkdir()
    lock_of_the_output = hashlib.sha256(b"a.png.safetensors").hexdigest()[:16]
    theirs = [f".tvae-{lock_of_the_output}.lock", ".tvae-0123456789abcdef.lock", ".tvae-notes.lock", ".tvae-notes.tmp"]
    theirs += [".tvae-1-00000000-000000000000.tmp", temporary_path(out / "x").name.replace(str(os.getpid()), "4194303")]
    for name in theirs:
        (out / name).write_bytes(b"" if name == theirs[1] else b"mine")
        os.utime(out / name, (1, 1))
    killed_at(out / "b.png.safetensors", out / "c.png.safetensors")
    assert len(list(out.iterdir())) == len(theirs) + 4
    photo(tmp_path / "a.png", 1)
    result = invoke(["encode", str(tmp_path / "a.png"), "-o", str(out), "--device", "cpu", "-v"])
    assert result.exit_code == 0, result.output
    assert result.stderr.count("that no lock of tvae names") == 1
    assert {path.name for path in out.iterdir()} == {"a.png.safetensors", *theirs}
    assert {(out / name).read_bytes() for name in theirs} == {b"mine", b""}


def test_a_picture_that_a_killed_run_was_writing(tmp_path: Path) -> None:
    for number in range(2):
        photo(tmp_path / "in" / "deep" / f"{number}.png", number)
    words = ["encode", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--recursive", "--device", "cpu"]
    program = "import os, signal; from tvae.cli.__main__ import program; replace = os.replace; "
    program += "os.replace = lambda old, new: 'out' in str(new) and os.kill(os.getpid(), signal.SIGKILL) or "
    program += "replace(old, new); program()"
    assert subprocess.run([sys.executable, "-c", program, *words], check=False).returncode == -signal.SIGKILL
    assert any(path.suffix == ".tmp" for path in (tmp_path / "out" / "deep").iterdir())
    assert invoke(words).exit_code == 0
    assert sorted(path.name for path in tmp_path.glob("out/**/*")) == ["0.png.safetensors", "1.png.safetensors", "deep"]


def test_a_lock_that_was_taken_over_still_names_who_was_killed(tmp_path: Path) -> None:
    for _ in range(2):
        killed_at(tmp_path / "a")
    assert len(list(tmp_path.iterdir())) == 3
    remove_leftovers([tmp_path])
    assert list(tmp_path.iterdir()) == []


def test_files_of_a_process_that_cannot_be_asked_for_stay_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(tmp_path / "a")
    monkeypatch.setattr(leftovers, "here", lambda: "01234567")
    remove_leftovers([tmp_path, tmp_path / "not there"])
    (temporary,) = (path for path in tmp_path.iterdir() if is_temporary(path.name))
    assert len(list(tmp_path.iterdir())) == 2, "with the lock that names it"
    os.utime(temporary, (1, time.time() - leftovers.OLD_SECONDS - 60))
    remove_leftovers([tmp_path])
    assert list(tmp_path.iterdir()) == []
