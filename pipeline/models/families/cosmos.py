"""AutoencoderKLCosmos: Cosmos, whose statistics are those of a channel and a latent frame."""

from __future__ import annotations

from tvae.pipeline.models.families.family import CLIP, Config, Family, causal, given
from tvae.pipeline.models.latent_space import LatentSpace, floats
from tvae.pipeline.models.layout import Kin, Layout, only

__all__ = ["COSMOS_SIGMA_DATA", "FAMILIES"]

COSMOS_SIGMA_DATA = 0.5
"""Of the scheduler that Cosmos 1.0 ships with (EDMEulerScheduler); the VAE's own files do not hold it."""


def _space(config: Config, _stored: tuple[tuple[float, ...], ...]) -> LatentSpace:
    """(z - latents_mean) · sigma_data / latents_std, as diffusers' cosmos pipelines have it."""
    mean, std = config.get("latents_mean"), config.get("latents_std")
    if mean is None or std is None:
        return LatentSpace(scale=(COSMOS_SIGMA_DATA,))
    frames = len(mean) // int(config["latent_channels"])
    return LatentSpace(floats(mean), tuple(COSMOS_SIGMA_DATA / s for s in floats(std)), frames=frames)


_RULES = (
    (r"^encoder\.down\.(\d+)\.block\.", r"encoder.down_blocks.\1.resnets."),
    (r"^encoder\.down\.(\d+)\.downsample\.", r"encoder.down_blocks.\1.downsamplers.0."),
    (r"^decoder\.up\.(\d+)\.block\.", r"decoder.up_blocks.~\1.resnets."),
    (r"^decoder\.up\.(\d+)\.upsample\.", r"decoder.up_blocks.~\1.upsamplers.0."),
    (r"\.mid\.block_1\.", ".mid_block.resnets.0."),
    (r"\.mid\.block_2\.", ".mid_block.resnets.1."),
    (r"\.mid\.attn_1\.0\.", ".mid_block.attentions.0."),
    (r"\.mid\.attn_1\.1\.", ".mid_block.temp_attentions.0."),
    (r"\.([qkv])\.conv3d\.", r".to_\1."),
    (r"\.proj_out\.conv3d\.", ".to_out.0."),
    (r"\.nin_shortcut\.conv3d\.", ".conv_shortcut."),
    (r"\.0\.conv3d\.", ".conv_s."),
    (r"\.1\.conv3d\.", ".conv_t."),
    (r"\.conv3d\.", "."),
)

FAMILIES = [
    Family(
        "AutoencoderKLCosmos",
        "video",
        causal(given("spatial_compression_ratio", 8), given("temporal_compression_ratio", 8), 16),
        "Cosmos; the posterior is a point",
        point=True,
        frames=CLIP,
        space=_space,
        layouts=(
            Layout("diffusers", r"(en|de)coder\.conv_in\.conv_s\.weight", only({})),
            Layout(
                "NVIDIA",
                r"(en|de)coder\.conv_in\.0\.conv3d\.weight",
                only({}),
                _RULES,
                # the last two are ComfyUI's
                unused=(r".*\.(wavelets|_arange|patch_size_buffer)", r"latent_(mean|std)"),
            ),
        ),
        kin=(
            Kin("cosmos1.0", "Cosmos 1.0", {}),
            Kin("cosmos0.1", "Cosmos Tokenizer 0.1", {}, {"latents_mean": None, "latents_std": None}),
        ),
    )
]
