"""LTX-Video and LTX-2: every pixel is normalised by itself, so that frames go out as they come in."""

from __future__ import annotations

from tvae.pipeline.models.families.family import ALONE, Checkpoint, Config, Family, LatentGeometry

__all__ = ["FAMILIES"]

_STATISTICS = ("latents_mean", "latents_std")


def _ltx(c: Config) -> LatentGeometry:
    scaling = c.get("spatio_temporal_scaling", (True, True, True, False))
    kinds = c.get("downsample_type", ("conv",) * 4)
    space = sum(map(bool, scaling)) - sum(k == "temporal" for k in kinds)
    time = sum(map(bool, scaling)) - sum(k == "spatial" for k in kinds)
    spatial = c.get("spatial_compression_ratio") or c.get("patch_size", 4) * 2**space
    temporal = c.get("temporal_compression_ratio") or c.get("patch_size_t", 1) * 2**time
    return LatentGeometry(int(spatial), int(temporal), 1, c.get("latent_channels", 128))


FAMILIES = [
    Family(
        "AutoencoderKLLTXVideo",
        "video",
        _ltx,
        "LTX-Video",
        frames=ALONE,
        statistics=_STATISTICS,
        checkpoints={"ltx": Checkpoint({}, "LTX-Video")},
    ),
    Family("AutoencoderKLLTX2Video", "video", _ltx, "LTX-2", frames=ALONE, statistics=_STATISTICS),
]
