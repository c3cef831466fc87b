"""AutoencoderKL: Stable Diffusion 1 to 3, SDXL, FLUX.1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvae.pipeline.models.families.family import Checkpoint, Family, halvings
from tvae.pipeline.models.layout import Kin, Layout, Shapes, count

__all__ = ["FAMILIES", "LDM_RULES", "OLD_ATTENTION", "kl_configs"]

OLD_ATTENTION = (
    (r"(\.attentions\.\d+)\.query\.", r"\1.to_q."),
    (r"(\.attentions\.\d+)\.key\.", r"\1.to_k."),
    (r"(\.attentions\.\d+)\.value\.", r"\1.to_v."),
    (r"(\.attentions\.\d+)\.proj_attn\.", r"\1.to_out.0."),
)
"""Names from before diffusers 0.17."""

LDM_RULES = (
    (r"^(encoder|decoder)\.norm_out\.", r"\1.conv_norm_out."),
    (r"^(encoder|decoder)\.mid\.block_1\.", r"\1.mid_block.resnets.0."),
    (r"^(encoder|decoder)\.mid\.block_2\.", r"\1.mid_block.resnets.1."),
    (r"^(encoder|decoder)\.mid\.attn_1\.norm\.", r"\1.mid_block.attentions.0.group_norm."),
    (r"^(encoder|decoder)\.mid\.attn_1\.([qkv])\.", r"\1.mid_block.attentions.0.to_\2."),
    (r"^(encoder|decoder)\.mid\.attn_1\.proj_out\.", r"\1.mid_block.attentions.0.to_out.0."),
    (r"^encoder\.down\.(\d+)\.block\.(\d+)\.", r"encoder.down_blocks.\1.resnets.\2."),
    (r"^encoder\.down\.(\d+)\.downsample\.", r"encoder.down_blocks.\1.downsamplers.0."),
    (r"^decoder\.up\.(\d+)\.block\.(\d+)\.", r"decoder.up_blocks.~\1.resnets.\2."),
    (r"^decoder\.up\.(\d+)\.upsample\.", r"decoder.up_blocks.~\1.upsamplers.0."),
    (r"\.nin_shortcut\.", r".conv_shortcut."),
)
"""Latent Diffusion's names, which ComfyUI, kohya's scripts and Black Forest Labs keep."""


def kl_configs(shapes: Shapes) -> Iterator[dict[str, Any]]:
    """The one configuration of layers whose shapes these are, with the 32 groups that every public VAE has."""
    levels = count(shapes, r"encoder\.down_blocks\.(\d+)\.")
    wanted = ["encoder.conv_in.weight", "decoder.conv_in.weight", "decoder.conv_out.weight"]
    wanted += [f"encoder.down_blocks.{i}.resnets.0.conv1.weight" for i in range(levels)]
    if not levels or any(len(shapes.get(name, ())) != 4 for name in wanted):
        return
    first, middle, last, *blocks = (shapes[name] for name in wanted)
    yield {
        "in_channels": first[1],
        "out_channels": last[0],
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
        "block_out_channels": [shape[0] for shape in blocks],
        "layers_per_block": count(shapes, r"encoder\.down_blocks\.0\.resnets\.(\d+)\."),
        "latent_channels": middle[1],
        "norm_num_groups": 32,
        "use_quant_conv": "quant_conv.weight" in shapes,
        "use_post_quant_conv": "post_quant_conv.weight" in shapes,
        "mid_block_add_attention": any(".mid_block.attentions." in name for name in shapes),
    }


_FOUR, _SIXTEEN = {"latent_channels": 4}, {"latent_channels": 16}
"""A smaller VAE of the same latents has the same model space."""

FAMILIES = [
    Family(
        "AutoencoderKL",
        "image",
        halvings("block_out_channels", 1, 4),
        "Stable Diffusion 1 to 3, SDXL, FLUX.1",
        checkpoints={
            "sdxl": Checkpoint(
                {
                    "down_block_types": ("DownEncoderBlock2D",) * 4,
                    "up_block_types": ("UpDecoderBlock2D",) * 4,
                    "block_out_channels": (128, 256, 512, 512),
                    "layers_per_block": 2,
                    "latent_channels": 4,
                    "norm_num_groups": 32,
                    "sample_size": 1024,
                    "force_upcast": False,  # or float16 would be computed in float32
                },
                "Stable Diffusion XL",
            )
        },
        layouts=(
            Layout("diffusers", r"encoder\.down_blocks\.0\.resnets\.0\.conv1\.weight", kl_configs, OLD_ATTENTION),
            Layout(
                "Latent Diffusion",
                r"encoder\.down\.0\.block\.0\.conv1\.weight",
                kl_configs,
                LDM_RULES,
                unused=(r"loss\..*", r"model_ema\..*"),
            ),
        ),
        kin=(
            Kin(
                "sd1",
                "Stable Diffusion 1 and 2",
                _FOUR,
                {"scaling_factor": 0.18215},
                r"cond_stage_model\..*",
                r"stable-diffusion-v[12](?!\d).*",
            ),
            Kin(
                "sdxl",
                "SDXL",
                _FOUR,
                {"scaling_factor": 0.13025, "force_upcast": True},
                r"conditioner\.embedders\..*",
                r"stable-diffusion-xl-.*",
            ),
            Kin(
                "sd3",
                "Stable Diffusion 3",
                _SIXTEEN,
                {"scaling_factor": 1.5305, "shift_factor": 0.0609, "force_upcast": True},
                r"model\.diffusion_model\.joint_blocks\..*",
                r"stable-diffusion-(v?3|3\.5).*",
            ),
            Kin(
                "flux",
                "FLUX.1",
                _SIXTEEN,
                {"scaling_factor": 0.3611, "shift_factor": 0.1159, "force_upcast": True},
                r"model\.diffusion_model\.double_blocks\..*",
                r"flux-1.*",
            ),
        ),
    )
]
