"""Names that differ in letter case alone: does a folder tell them apart?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tvae.pipeline.files.letter_case import SamePlaces, folded, tells_letter_case


def test_as_the_file_system_does(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "A").touch()
    there = os.listdir(tmp_path)
    assert tells_letter_case(tmp_path) == tells_letter_case(tmp_path / "none" / "at all") == (len(there) == 2)
    assert os.listdir(tmp_path) == there


def test_where_letter_case_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.path.lexists
    monkeypatch.setattr(os.path, "lexists", lambda path: real(Path(path).with_name(Path(path).name.lower())))
    assert not tells_letter_case(tmp_path)
    assert os.listdir(tmp_path) == []


def test_where_nothing_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not tells_letter_case(tmp_path / "file")


def test_paths_of_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = str(tmp_path / "Sub" / "e\u0301.png"), str(tmp_path / "sub" / "\u00e9.PNG")
    assert folded(one) == folded(other)
    (tmp_path / "Sub").mkdir()
    assert SamePlaces()(one, other) == (tmp_path / "sub").exists()
    real = os.path.lexists

    def there(path: Path) -> bool:
        """As on a disk of macOS."""
        folder = path.parent
        return real(path) or (folder.is_dir() and folded(path.name) in {folded(name) for name in os.listdir(folder)})

    monkeypatch.setattr(os.path, "lexists", there)
    assert SamePlaces()(one, other)
    assert os.listdir(tmp_path) == ["Sub"]
