"""An image VAE that is exact and costs nothing, where what is tested lies around it."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tvae.pipeline.models.latent_space import LatentSpace

__all__ = ["StandIn"]


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
            path=None,
            weights_sha256="a" * 64,
            values=(),
            spatial_factor=8,
            temporal_factor=None,
            lead_frames=0,
            latent_group=1,
            latent_channels=3,
            in_channels=3,
            posterior=False,
            space=LatentSpace(),
            lacks={},
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
