"""tvae's public API: run a diffusion model's VAE over inputs of any size with the numbers of the untiled model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvae.pipeline.doors.opening import Latents, load_latents, load_vae
    from tvae.pipeline.doors.running import decode, encode
    from tvae.pipeline.doors.saving import save_latents
    from tvae.pipeline.tiled_vae import TiledVAE

__all__ = ["Latents", "TiledVAE", "decode", "encode", "load_latents", "load_vae", "save_latents"]

_HOMES = {
    "TiledVAE": "tiled_vae",
    **dict.fromkeys(("Latents", "load_latents", "load_vae"), "doors.opening"),
    **dict.fromkeys(("decode", "encode"), "doors.running"),
    "save_latents": "doors.saving",
}


def __getattr__(name: str) -> Any:
    # torch takes a second to import, and the command line's --help does without
    if name in _HOMES:
        found = globals()[name] = getattr(import_module(f"tvae.pipeline.{_HOMES[name]}"), name)
        return found
    raise AttributeError(f"module 'tvae.pipeline' has no attribute {name!r}")
