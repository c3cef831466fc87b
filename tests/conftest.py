"""Fixtures that many tests share."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

REPOSITORY = Path(__file__).resolve().parent.parent

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is imported: workers and their programs share the processors
    _workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // _workers)))

for _name in [name for name in os.environ if name.startswith("HF_")]:  # huggingface_hub reads them when it is imported
    del os.environ[_name]

# The default run draws the same examples every time, so that it fails for a change and never by chance;
# HYPOTHESIS_PROFILE=explore (as .ci/slow has it) draws others, and more of them.
_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}  # a first example may compile something
settings.register_profile("repeat", max_examples=8, derandomize=True, **_common)
settings.register_profile("explore", max_examples=100, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))

_SETTLED = pytest.StashKey[bool]()
gc.set_threshold(100_000, 50, 100)  # captures make millions of objects; collecting was an eighth of their time


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Captured graphs and checksums of a test run are its own: no test passes for what an earlier run left.

    The workers of a run share them, as the programs of a user do.
    """
    before = os.environ.get("XDG_CACHE_HOME")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    folder.mkdir(exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(folder)
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(scope="module", autouse=True)
def _settled_heap(request: pytest.FixtureRequest) -> None:
    """What is there when a file begins is left out of collections.

    A million objects of imports made each take a second, and tests, and captures that fail, collect often. Files after
    which little is left go by without.
    """
    if _SETTLED not in request.config.stash or gc.get_count() > (20_000, 0, 0) or any(gc.get_count()[1:]):
        gc.collect()
        gc.freeze()
        request.config.stash[_SETTLED] = True


@pytest.fixture(scope="session")
def shared_media() -> Path:
    """Folder of real photos and clips beside the checkout; tests that need it skip without it."""
    folder = REPOSITORY.parent / "shared" / "media"
    if not folder.is_dir():
        pytest.skip("real media (../shared/media) is not here")
    return folder


@pytest.fixture
def spilled(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folder of every buffer that went to disk."""
    from tvae.pipeline.engine.run import disk_storage as boundary

    folders: list[Path] = []
    working = boundary._private_file

    def noted(folder: Path, size: int) -> Any:
        folders.append(folder)
        return working(folder, size)

    monkeypatch.setattr(boundary, "_private_file", noted)
    return folders


@pytest.fixture
def no_threads_left() -> Iterator[None]:
    """Of ``TiledVAE(vae, devices=...)`` that the test has let go of."""
    yield
    gc.collect()
    left = [thread for thread in threading.enumerate() if thread.name.startswith("tvae-device")]
    for thread in left:
        thread.join(5)
    assert not any(thread.is_alive() for thread in left)
