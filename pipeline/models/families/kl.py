"""AutoencoderKL: Stable Diffusion 1 to 3, SDXL, FLUX.1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvae.pipeline.models.families.family import Checkpoint, Family, halvings
from tvae.pipeline.models.layout import DIFFUSERS_2D, LDM_2D, LDM_RULES, OLD_ATTENTION, Kin, Layout, Shapes
from tvae.pipeline.models.ldm_layers import ldm_layers

__all__ = ["FAMILIES"]


def _configs(shapes: Shapes) -> Iterator[dict[str, Any]]:
    """The one configuration of layers whose shapes these are, with the 32 groups that every public VAE has."""
    layers = ldm_layers(shapes)
    if layers is None:
        return
    # a file that has lost them has the layers of another model: all public VAEs of four channels have both
    convs = layers.latent_channels == 4 or any(f"{name}.weight" in shapes for name in ("quant_conv", "post_quant_conv"))
    levels = len(layers.encoder)
    yield {
        "in_channels": layers.in_channels,
        "out_channels": layers.out_channels,
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
        "block_out_channels": [*layers.encoder],
        "layers_per_block": layers.layers,
        "latent_channels": layers.latent_channels,
        "norm_num_groups": 32,
        "use_quant_conv": convs,
        "use_post_quant_conv": convs,
        "mid_block_add_attention": layers.attends,
    }


_FOUR, _SIXTEEN = {"latent_channels": 4}, {"latent_channels": 16}
"""A smaller VAE of the same latents has the same model space."""
_FT_MSE = "Stable Diffusion 1 (ft-MSE)"

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
            Layout("diffusers", DIFFUSERS_2D, _configs, OLD_ATTENTION),
            Layout(
                "Latent Diffusion",
                LDM_2D,
                _configs,
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
                {
                    "735e4c3a447a3255760d7f86845f09f937809baa529c17370d83e4c3758f3c75": _FT_MSE,
                    "a1d993488569e928462932c8c38a0760b874d166399b14414135bd9c42df5815": _FT_MSE,
                    "32db726da04f06c1b6b14c0043ce115cc87a501482945c5add89a40d838fcb46": "Stable Diffusion 1 (ft-EMA)",
                    "4fbcf0ebe55a0984f5a5e00d8c4521d52359af7229bb4d81890039d2aa16dd7c": "Stable Diffusion 1.5, float16",
                },
            ),
            Kin(
                "playground2.5",
                "Playground 2.5",
                _FOUR,
                {
                    "scaling_factor": 0.5,
                    "latents_mean": [-1.6574, 1.886, -1.383, 2.5155],
                    "latents_std": [8.4927, 5.9022, 6.5498, 5.2299],
                    "force_upcast": True,
                },
                r"edm_mean",
                r"playground-v2[.-]?5.*",
            ),
            Kin(
                "sdxl",
                "SDXL",
                _FOUR,
                {"scaling_factor": 0.13025, "force_upcast": True},
                r"conditioner\.embedders\..*",
                r"stable-diffusion-xl-.*",
                {
                    "63aeecb90ff7bc1c115395962d3e803571385b61938377bc7089b36e81e92e2e": "SDXL",
                    "1598f3d24932bcfe6634e8b618ea1e30ab1d57f5aad13a6d2de446d2199f2341": "SDXL",
                    "bcb60880a46b63dea58e9bc591abe15f8350bde47b405f9c38f4be70c6161e68": "SDXL, float16",
                    "235745af8d86bf4a4c1b5b4f529868b37019a10f7c0b2e79ad0abca3a22bc6e1": "SDXL (fp16 fix)",
                    "1b909373b28f2137098b0fd9dbc6f97f8410854f31f84ddc9fa04b077b0ace2c": "SDXL (fp16 fix)",
                },
            ),
            Kin(
                "sd3",
                "Stable Diffusion 3",
                _SIXTEEN,
                {"scaling_factor": 1.5305, "shift_factor": 0.0609, "force_upcast": True},
                r"model\.diffusion_model\.joint_blocks\..*",
                r"stable-diffusion-(v?3|3\.5).*",
                {"8f53304a79335b55e13ec50f63e5157fee4deb2f30d5fae0654e2b2653c109dc": "Stable Diffusion 3.5"},
            ),
            Kin(
                "flux",
                "FLUX.1",
                _SIXTEEN,
                {"scaling_factor": 0.3611, "shift_factor": 0.1159, "force_upcast": True},
                r"model\.diffusion_model\.double_blocks\..*",
                r"flux-1.*",
                {
                    "afc8e28272cd15db3919bacdb6918ce9c1ed22e96cb12c4d5ed0fba823529e38": "FLUX.1",
                    "f5b59a26851551b67ae1fe58d32e76486e1e812def4696a4bea97f16604d40a3": "FLUX.1, bfloat16",
                },
            ),
        ),
    )
]
