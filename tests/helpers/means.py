"""An image VAE that costs nothing, for tests of what jobs do around the model."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from tvae.pipeline.models.latent_space import LatentSpace
from tvae.pipeline.session.outputs import Posterior


class Means:
    """Latents are means over squares of 8x8 pixels."""

    dtype, device = torch.float32, torch.device("cpu")
    whole_pixels = 1 << 18

    def __init__(self) -> None:
        known = {
            "id": "means",
            "class_name": "AutoencoderMeans",
            "config_hash": "c" * 64,
            "weights_sha256": "a" * 64,
            "path": None,
            "values": (),
            "lacks": {},
        }
        sizes = {"spatial_factor": 8, "temporal_factor": None, "lead_frames": 0, "latent_group": 1}
        channels = {"latent_channels": 3, "in_channels": 3, "posterior": False, "space": LatentSpace()}
        self.info = SimpleNamespace(**known, **sizes, **channels)

    def encode(self, x: torch.Tensor) -> object:
        """[N, 3, H, W] to a point for each square."""
        return Posterior(torch.nn.functional.avg_pool2d(x, 8), None)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        """Squares of one colour."""
        return z.repeat_interleave(8, -1).repeat_interleave(8, -2)
