"""The program in this process, with a stand-in for the VAE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from typer.testing import CliRunner, Result

from tvae.cli.app import app
from tvae.pipeline.models.latent_space import LatentSpace


@dataclass
class StandIn:
    """An image VAE of means over 8x8 squares."""

    id: str = "stand-in"
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable
    goes_by_frames: bool = False
    whole_pixels: int = 1 << 18

    device = torch.device("cpu")
    limits = SimpleNamespace(vram=None, spill=None)

    @property
    def info(self) -> Any:
        return SimpleNamespace(
            id=self.id,
            class_name="AutoencoderStandIn",
            config_hash="c" * 64,
            weights_sha256="a" * 64,
            spatial_factor=8,
            temporal_factor=None,
            lead_frames=0,
            latent_group=1,
            latent_channels=3,
            in_channels=3,
            posterior=False,
            space=LatentSpace(),
        )

    def encode(self, x: Any) -> Any:
        x = x if isinstance(x, Tensor) else x.fetch(0, x.shape[-2]).result()
        return SimpleNamespace(mean=F.avg_pool2d(x, 8), logvar=None)

    def decode(self, z: Tensor) -> Tensor:
        return z.repeat_interleave(8, -1).repeat_interleave(8, -2)

    def stream(self, side: str) -> None:
        return None

    def decode_to(self, z: Tensor, sink: Any) -> None:
        sink.keep(0, 8 * z.shape[-2], self.decode(z)).result()

    def plan(self, shape: tuple[int, ...], side: str) -> Any:
        return _Plan(side, shape)


@dataclass
class _Plan:
    side: str
    input_shape: tuple[int, ...]
    peak_bytes: int = 3 << 20
    weight_bytes: int = 1 << 20
    least_budget: int = 2 << 20
    seconds: float = 0.25
    bound: str = "arithmetic"
    host_bytes: int = 0
    disk_bytes: int = 0
    whole: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"table of {self.side} {self.input_shape}"

    def to_json(self) -> dict[str, Any]:
        return {"shape": list(self.input_shape)}


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

    monkeypatch.setattr("tvae.pipeline.jobs.vaes.open_model", open_model)
    monkeypatch.setattr("tvae.pipeline.session.model.open_model", open_model)
    return lambda *arguments, **extra: CliRunner().invoke(app, [str(argument) for argument in arguments], **extra)


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
