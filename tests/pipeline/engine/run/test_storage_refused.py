"""Disks and folders that cannot take rows: told in one line, and left as they were."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from open_files import open_files
from stored_rows import CPU, PLAIN, POSIX, SHAPE, value_of

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.run.disk_storage import OnDisk
from tvae.pipeline.errors import PlanError


def test_a_folder_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "missing", tmp_path / "file"):
        before = open_files()
        with pytest.raises(PlanError) as caught:
            OnDisk(SHAPE, PLAIN, torch.float32, CPU, False, folder)
        assert str(folder) in str(caught.value)
        assert "cannot spill 0.00 GiB" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert open_files() == before
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not POSIX, reason="a folder's permissions bind nobody there")
def test_a_folder_without_permission_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:  # root may write anywhere: say what the system says to everybody else

        def refused(*_args: Any, **_options: Any) -> Any:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr("tempfile.TemporaryFile", refused)
    tmp_path.chmod(0o500)
    with pytest.raises(PlanError, match="Permission denied; name another folder or allow more memory"):
        OnDisk(SHAPE, PLAIN, torch.float32, CPU, False, tmp_path)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the file grows as it is written there")
def test_a_full_disk_is_told_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, _offset: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = open_files()
    with pytest.raises(PlanError) as caught:
        OnDisk(SHAPE, PLAIN, torch.float32, CPU, False, tmp_path)
    assert open_files() == before  # while the error is still held: what was allocated is free again
    assert "No space left on device" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a mebibyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tvae-test", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("this user may not mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def free_bytes(folder: Path) -> int:
    facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize


def test_a_disk_that_is_too_small_stays_as_it_was(small_disk: Path) -> None:
    """The second of two buffers does not fit: told when it is asked for, and its place is given back."""
    axis = Axis(2, 1, 600, 1)
    shape = (1, 1, 600, 256)
    before = free_bytes(small_disk)
    first = OnDisk(shape, axis, torch.float32, CPU, False, small_disk)
    between = free_bytes(small_disk)
    assert before - between >= first.bytes
    with pytest.raises(PlanError, match="No space left on device") as caught:
        OnDisk(shape, axis, torch.float32, CPU, False, small_disk)
    assert free_bytes(small_disk) == between
    assert str(small_disk) in str(caught.value)
    full = value_of(shape, torch.float32)
    first.keep(0, 600, full).result()
    assert torch.equal(first.fetch(0, 600).result(), full)
    first.close()
    assert free_bytes(small_disk) == before
    assert list(small_disk.iterdir()) == []


HOLDING = """
import sys, time, torch
from pathlib import Path
from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.run.disk_storage import OnDisk
held = OnDisk((1, 4, 1024, 64), Axis(2, 1, 1024, 1), torch.float32, torch.device("cpu"), False, Path(sys.argv[1]))
held.keep(0, 1024, torch.zeros(1, 4, 1024, 64)).result()
print("holding", flush=True)
time.sleep(60)
"""


@pytest.mark.long
@pytest.mark.skipif(not POSIX, reason="a name is gone at once only on POSIX; elsewhere when the file is closed")
def test_nothing_survives_a_kill(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLDING, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "holding\n"
        assert list(tmp_path.iterdir()) == []
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert list(tmp_path.iterdir()) == []


LIMITED = """
import resource, sys, torch
from pathlib import Path
from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.run.disk_storage import OnDisk
from tvae.pipeline.errors import PlanError
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    OnDisk((1, 4, 1024, 64), Axis(2, 1, 1024, 1), torch.float32, torch.device("cpu"), False, Path(sys.argv[1]))
except PlanError as error:
    print(error)
"""


@pytest.mark.long
@pytest.mark.skipif(not POSIX, reason="limits of that kind are POSIX's")
def test_a_limit_on_files_is_told_in_one_line(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    (line,) = run.stdout.splitlines()
    assert "File too large; name another folder or allow more memory" in line
    assert list(tmp_path.iterdir()) == []
