"""How files name the tensors of TAESD and its kin, of all classes: numbers of layers, a word for the side or none.

The author's decoder begins with a layer without weights, which diffusers does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tvae.pipeline.models.layout import Layout, Rules, Shapes, bare

__all__ = ["AS_DIFFUSERS", "taesd_layouts"]

_MOST_LAYERS = 64

AS_DIFFUSERS: Rules = (
    (r"^encoder\.(?=\d)", "encoder.layers."),
    *((rf"^decoder\.{n}\.", f"decoder.layers.{n - 1}.") for n in range(1, _MOST_LAYERS)),
)
"""From the author's numbers to those of diffusers."""
_FROM_DIFFUSERS: Rules = (
    (r"^encoder\.layers\.", "encoder."),
    *((rf"^decoder\.layers\.{n}\.", f"decoder.{n + 1}.") for n in range(_MOST_LAYERS)),
)
_IN_COMFYUI: Rules = ((r"^taesd_(en|de)coder\.", r"\1coder."),)


def taesd_layouts(configs: Callable[[Shapes], Iterable[dict[str, Any]]], rules: Rules = ()) -> tuple[Layout, ...]:
    """The layouts of a class. rules: from the author's names, with a word for the side, to the module's."""
    own = Layout("TAESD", r"encoder\.0\.weight|decoder\.1\.weight", configs, rules)
    comfyui = r"taesd_(encoder\.0|decoder\.1)\.weight"
    return (
        Layout("diffusers", r"(en|de)coder\.layers\.0\.weight", configs, (*_FROM_DIFFUSERS, *rules)),
        Layout("TAESD", comfyui, configs, (*_IN_COMFYUI, *rules), unused=("vae_scale", "vae_shift")),
        own,
        bare(own, "encoder", r"0\.weight"),
        bare(own, "decoder", r"1\.weight"),
    )
