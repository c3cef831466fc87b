"""VAEs, and a folder to work in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cache_vaes import saved


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="package")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Of VAEs by name, each made once."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            saved(name, made[name])
        return made[name]

    return folder
