"""Triton's name for itself, from the process before: as long as none of its files has changed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tvae.kernels import cache, triton_name
from tvae.kernels.triton_name import known_name, remember_name

MODULE = "library/runtime/cache.py"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files in two folders, a minute old."""
    monkeypatch.setattr(cache, "_root", lambda: tmp_path / "kept")
    for name in ("a/one.py", "b/two.py"):
        path = tmp_path / "library" / name
        path.parent.mkdir(parents=True)
        path.write_text(name)
    for path in [*(tmp_path / "library").rglob("*")]:
        os.utime(path, (time.time() - 60,) * 2)
    return tmp_path / "library"


def files(library: Path) -> set[str]:
    return {str(path) for path in library.rglob("*.py")}


def test_a_name_is_known_to_the_next(library: Path) -> None:
    assert known_name(MODULE) is None
    remember_name(MODULE, "1.0-abc", files(library))
    assert known_name(MODULE) == "1.0-abc"
    assert known_name("elsewhere/" + MODULE) is None


CHANGES: dict[str, Callable[[Path], object]] = {
    "other bytes": lambda library: (library / "a/one.py").write_text("a/ONE.py"),
    "a touch": lambda library: os.utime(library / "b/two.py"),
    "gone": lambda library: (library / "b/two.py").unlink(),
    "more": lambda library: (library / "a/three.py").touch(),
    "in another's place": lambda library: (library / "a/one.py").replace(library / "b/two.py"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_of_files_that_have_changed_nothing_is_known(change: str, library: Path) -> None:
    remember_name(MODULE, "1.0-abc", files(library))
    CHANGES[change](library)
    assert known_name(MODULE) is None


def test_other_bytes_of_the_same_age(library: Path) -> None:
    """No file system lets a program say when it changed a file's state."""
    remember_name(MODULE, "1.0-abc", files(library))
    one = library / "a/one.py"
    status = one.stat()
    one.write_text("a/ONE.py")
    os.utime(one, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (one.stat().st_size, one.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert known_name(MODULE) is None or os.name == "nt"


def test_what_has_just_changed_is_not_remembered(library: Path) -> None:
    os.utime(library / "a/one.py")
    remember_name(MODULE, "1.0-abc", files(library))
    assert known_name(MODULE) is None


def test_nothing_to_go_by(library: Path) -> None:
    remember_name(MODULE, "1.0-abc", set())
    assert known_name(MODULE) is None
    remember_name(MODULE, "1.0-abc", {*files(library), str(library / "none.py")})
    assert known_name(MODULE) is None


def test_a_name_that_is_no_text(library: Path) -> None:
    remember_name(MODULE, 7, files(library))  # type: ignore[arg-type]
    assert known_name(MODULE) is None


@pytest.mark.parametrize(
    "kept",
    [b"", b"[]", b"7", b'["name"]', b"[7, {}]", b'["name", 7]', b'["name", {}]', b"[" * 100_000, b'["name", {"/": 7}]'],
)
def test_a_damaged_entry(kept: bytes, library: Path) -> None:
    remember_name(MODULE, "1.0-abc", files(library))
    (entry,) = (library.parent / "kept" / "triton").iterdir()
    triton_name.keep(entry, kept)
    assert known_name(MODULE) is None
    entry.write_bytes(kept)
    assert known_name(MODULE) is None


@pytest.mark.skipif(os.name == "nt", reason="needs rights of POSIX")
def test_a_folder_that_others_can_write_to(library: Path) -> None:
    remember_name(MODULE, "1.0-abc", files(library))
    (library.parent / "kept" / "triton").chmod(0o777)
    assert known_name(MODULE) is None
