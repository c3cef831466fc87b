"""Files of the cache: whole, or as if they were not there."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tvae.kernels import kept_bytes
from tvae.kernels.kept_bytes import keep, kept


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert kept(path) is None
    for made in b"some", bytes(range(256)) * 1000, b"x":
        keep(path, made)
        assert kept(path) == made
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_what_is_damaged_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    keep(path, b"some bytes")
    whole = path.read_bytes()
    for damage in b"", b"some bytes", whole[:-1], whole + b"x", whole[:32], whole[:-1] + bytes([whole[-1] ^ 1]):
        path.write_bytes(damage)
        assert kept(path) is None
        keep(path, b"some bytes")
        assert path.read_bytes() == whole
    path.write_bytes(hashlib.sha256(b"").digest())  # a power cut's
    assert kept(path) is None


def test_what_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    keep(path, b"x" * 100)
    monkeypatch.setattr(kept_bytes, "_MOST", 132)
    assert kept(path) == b"x" * 100
    monkeypatch.setattr(kept_bytes, "_MOST", 131)
    assert kept(path) is None


def test_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    keep(tmp_path / "file" / "folder" / "name", b"some")
    (tmp_path / "taken").mkdir()
    keep(tmp_path / "taken", b"some")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]
    assert kept(tmp_path / "taken") is None
