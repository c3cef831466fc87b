"""Run the VAEs of diffusion models over inputs of any size, strip by strip, with the untiled model's numbers.

``TiledVAE`` wraps a VAE for a diffusers pipeline. ``load_vae``, ``encode`` and ``decode`` work with a VAE by name, and
``load_latents`` and ``save_latents`` with files of latents. Names are imported at their first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvae.pipeline import Latents, TiledVAE, decode, encode, load_latents, load_vae, save_latents

__all__ = ["Latents", "TiledVAE", "decode", "encode", "load_latents", "load_vae", "save_latents"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from tvae import pipeline

        found = globals()[name] = getattr(pipeline, name)
        return found
    raise AttributeError(f"module 'tvae' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
