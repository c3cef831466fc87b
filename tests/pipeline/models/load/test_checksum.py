"""The digest of a weights file is computed once, and again when the file has changed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tvae.pipeline.models import checksum


def test_digest_is_computed_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"1")
    os.utime(file, (1_700_000_000, 1_700_000_000))
    digest = checksum.sha256_of_file(file)
    assert digest == hashlib.sha256(b"1").hexdigest()
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("hashed again"))
        assert checksum.sha256_of_file(file) == digest
    (entry,) = cache.iterdir()
    whole = entry.read_text()
    for damage in "damaged", "[]", "[" * 100_000, whole.replace(digest, "0" * 64), whole.replace('"check"', '"x"'):
        entry.write_text(damage)
        assert checksum.sha256_of_file(file) == digest
    file.write_bytes(b"2")
    os.utime(file, (1_700_000_000, 1_700_000_000))  # of the same size and time as before: swapped
    assert checksum.sha256_of_file(file) == hashlib.sha256(b"2").hexdigest()


def test_fresh_file_is_not_remembered(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"1")
    checksum.sha256_of_file(file)
    assert not list(cache.iterdir())


def test_cache_that_cannot_be_written(tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    file = tmp_path / "weights"
    file.write_bytes(b"1")
    os.utime(file, (1_700_000_000, 1_700_000_000))
    assert checksum.sha256_of_file(file) == hashlib.sha256(b"1").hexdigest()
