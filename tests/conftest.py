"""Fixtures that many tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Captured graphs and checksums of a test run are its own: no test passes for what an earlier run left."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(scope="session")
def shared_media() -> Path:
    """Folder of real photos and clips beside the checkout; tests that need it skip without it."""
    folder = REPOSITORY.parent / "shared" / "media"
    if not folder.is_dir():
        pytest.skip("real media (../shared/media) is not here")
    return folder
