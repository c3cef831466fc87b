"""What an AutoencoderKL is built from, and which of diffusers' configurations that says in full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CLASS_NAME", "KLConfig", "config_of"]

CLASS_NAME = "AutoencoderKL"
MOST_LEVELS, MOST_LAYERS = 16, 64
"""Of a configuration whose graph is written here; no model known has a quarter of them."""
_DEFAULT_WIDTHS = (64,)
_BLOCKS = {"down_block_types": "DownEncoderBlock2D", "up_block_types": "UpDecoderBlock2D"}
_NOT_OF_THE_LAYERS = {"sample_size", "scaling_factor", "shift_factor", "latents_mean", "latents_std", "force_upcast"}


@dataclass(frozen=True)
class KLConfig:
    """block_out_channels: from the pixels inwards; every level but the last halves height and width."""

    in_channels: int = 3
    out_channels: int = 3
    block_out_channels: tuple[int, ...] = _DEFAULT_WIDTHS
    layers_per_block: int = 1
    latent_channels: int = 4
    norm_num_groups: int = 32
    use_quant_conv: bool = True
    use_post_quant_conv: bool = True
    mid_block_add_attention: bool = True


def config_of(config: Mapping[str, Any]) -> KLConfig | None:
    """The layers of a configuration in diffusers' form; None where it asks for anything that is not known here."""
    given = {name: value for name, value in config.items() if name[:1] != "_" and name not in _NOT_OF_THE_LAYERS}
    widths = given.pop("block_out_channels", _DEFAULT_WIDTHS)
    if not isinstance(widths, (list, tuple)) or given.pop("act_fn", "silu") not in ("silu", "swish"):
        return None
    if any(
        given.pop(name, (only,)) not in ([only] * len(widths), (only,) * len(widths)) for name, only in _BLOCKS.items()
    ):
        return None
    defaults = vars(KLConfig())
    if any(name not in defaults or type(value) is not type(defaults[name]) for name, value in given.items()):
        return None
    found = KLConfig(block_out_channels=tuple(widths), **given)
    counts = [v for v in (*widths, *vars(found).values()) if type(v) is not bool and type(v) is not tuple]
    if len(widths) > MOST_LEVELS or found.layers_per_block > MOST_LAYERS:
        return None
    if not widths or any(type(n) is not int or n < 1 for n in counts) or any(n % found.norm_num_groups for n in widths):
        return None
    return found
