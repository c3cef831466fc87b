"""The program in this process, with a stand-in for the VAE."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from program import invoke
from stand_in import StandIn
from typer.testing import Result


@pytest.fixture
def tvae(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs the program with these arguments; every VAE is the stand-in, unless its name is 'missing'."""

    def open_model(name: str, **options: Any) -> StandIn:
        from tvae.pipeline.errors import UsageError

        if name == "missing":
            raise UsageError("no VAE 'missing'")
        if options["dtype"] not in (None, "float32"):
            raise UsageError(f"unknown dtype '{options['dtype']}'")
        return StandIn(name)

    monkeypatch.setattr("tvae.pipeline.session.model.open_model", open_model)
    monkeypatch.setattr("tvae.pipeline.session.model.open_model", open_model)
    return lambda *arguments, **extra: invoke([str(argument) for argument in arguments], **extra)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A small PNG."""
    from PIL import Image

    path = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(path)
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a small image VAE."""
    from tiny_vaes import TINY

    model: Any = TINY["AutoencoderTiny"].build()
    folder = tmp_path_factory.mktemp("vae")
    model.save_pretrained(folder)
    return str(folder)
