"""What Python programs use: ``import tvae``. The pipeline's names, imported at their first use."""

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
