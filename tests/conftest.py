"""Fixtures that many tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_media() -> Path:
    """Folder of real photos and clips beside the checkout; tests that need it skip without it."""
    folder = REPOSITORY.parent / "shared" / "media"
    if not folder.is_dir():
        pytest.skip("real media (../shared/media) is not here")
    return folder
