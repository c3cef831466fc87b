"""LTX-Video and LTX-2: every pixel is normalised by itself, so that frames go out as they come in."""

from __future__ import annotations

from typing import Any

from tvae.pipeline.models.families.family import ALONE, Checkpoint, Config, Family, LatentGeometry
from tvae.pipeline.models.layout import Layout, Rules, only

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


def _rules(encoder: str, decoder: str) -> Rules:
    """Lightricks' names: blocks and what lies between them stand in one row.

    encoder, decoder: what stands there from the pixels, or from the latents, inwards: `b` a block, `s` a change of size
    behind it, `c` a change of its channels, `m` the middle. Of a decoder, `s` and `c` stand before their block.
    """
    found: list[tuple[str, str]] = []
    block = 0
    for n, kind in enumerate(encoder):
        block += kind == "b" and n > 0
        own = {
            "b": f"down.{block}",
            "s": f"down.{block}.downsamplers.0",
            "c": f"down.{block}.conv_out",
            "m": "mid_block",
        }
        found.append((rf"^encoder\.down_blocks\.{n}\.", f"encoder.{own[kind]}."))
    block = 0
    for n, kind in enumerate(decoder):
        own = {"b": f"up.{block}", "s": f"up.{block}.upsamplers.0", "c": f"up.{block}.conv_in", "m": "mid_block"}
        found.append((rf"^decoder\.up_blocks\.{n}\.", f"decoder.{own[kind]}."))
        block += kind == "b"
    return (
        *found,
        (r"^encoder\.down\.", "encoder.down_blocks."),
        (r"^decoder\.up\.", "decoder.up_blocks."),
        (r"\.res_blocks\.", ".resnets."),
        (r"\.conv_shortcut\.(weight|bias)$", r".conv_shortcut.conv.\1"),
        (r"\.norm3\.norm\.", ".norm3."),
        (r"\.last_time_embedder\.", ".time_embedder."),
        (r"\.last_scale_shift_table$", ".scale_shift_table"),
        (r"^per_channel_statistics\.mean-of-means$", "latents_mean"),
        (r"^per_channel_statistics\.std-of-means$", "latents_std"),
    )


_UNUSED = (r"per_channel_statistics\.(channel|mean-of-stds.*)",)
_UP_3: dict[str, Any] = {
    "decoder_block_out_channels": (256, 512, 1024),
    "decoder_spatio_temporal_scaling": (True, True, True),
    "upsample_residual": (True, True, True),
    "upsample_factor": (2, 2, 2),
    "timestep_conditioning": True,
}
_091 = {
    **_UP_3,
    "decoder_layers_per_block": (5, 6, 7, 8),
    "decoder_inject_noise": (True, True, True, False),
}
_095 = {
    **_UP_3,
    "block_out_channels": (128, 256, 512, 1024, 2048),
    "down_block_types": ("LTXVideo095DownBlock3D",) * 4,
    "layers_per_block": (4, 6, 6, 2, 2),
    "decoder_layers_per_block": (5, 5, 5, 5),
    "spatio_temporal_scaling": (True, True, True, True),
    "decoder_inject_noise": (False, False, False, False),
    "downsample_type": ("spatial", "temporal", "spatiotemporal", "spatiotemporal"),
    "spatial_compression_ratio": 32,
    "temporal_compression_ratio": 8,
}
_2_0 = {"decoder_causal": False, "spatial_compression_ratio": 32, "temporal_compression_ratio": 8}
_2_3 = {
    **_2_0,
    "block_out_channels": (256, 512, 1024, 1024),
    "layers_per_block": (4, 6, 4, 2, 2),
    "decoder_block_out_channels": (256, 512, 512, 1024),
    "decoder_layers_per_block": (4, 6, 4, 2, 2),
    "decoder_spatio_temporal_scaling": (True, True, True, True),
    "decoder_inject_noise": (False, False, False, False, False),
    "upsample_type": ("spatiotemporal", "spatiotemporal", "temporal", "spatial"),
    "upsample_residual": (False, False, False, False),
    "upsample_factor": (2, 2, 1, 2),
    "decoder_spatial_padding_mode": "zeros",
}
"""Published configurations, from diffusers' scripts that convert them; what is not named is the default."""
_OWN = r"(encoder\.down|decoder\.up)_blocks\.0\.res_blocks\.0\.conv1\.conv\.weight"
_DIFFUSERS = r"(encoder\.down_blocks\.0|decoder\.mid_block)\.resnets\.0\.conv1\.conv\.weight"

FAMILIES = [
    Family(
        "AutoencoderKLLTXVideo",
        "video",
        _ltx,
        "LTX-Video",
        frames=ALONE,
        statistics=_STATISTICS,
        checkpoints={"ltx": Checkpoint({}, "LTX-Video")},
        layouts=(
            Layout("diffusers", _DIFFUSERS, only({}, _091, _095)),
            Layout("Lightricks", _OWN, only({}), _rules("bscbscbsbm", "mbsbcsbcsb"), _UNUSED),
            Layout("Lightricks", _OWN, only(_091), _rules("bscbscbsbm", "msbsbsb"), _UNUSED),
            Layout("Lightricks", _OWN, only(_095), _rules("bsbsbsbsm", "msbsbsb"), _UNUSED),
        ),
        files={"265ca87cb5dff5e37f924286e957324e282fe7710a952a7dafc0df43883e2010": "LTX-Video"},
    ),
    Family(
        "AutoencoderKLLTX2Video",
        "video",
        _ltx,
        "LTX-2",
        frames=ALONE,
        statistics=_STATISTICS,
        layouts=(
            Layout("diffusers", _DIFFUSERS, only(_2_0, _2_3)),
            Layout("Lightricks", _OWN, only(_2_0), _rules("bsbsbsbsm", "msbsbsb"), _UNUSED),
            Layout("Lightricks", _OWN, only(_2_3), _rules("bsbsbsbsm", "msbsbsbsb"), _UNUSED),
        ),
    ),
]
