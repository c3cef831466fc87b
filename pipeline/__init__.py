"""tvae's public API: run a diffusion model's VAE over inputs of any size with the numbers of the untiled model."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvae.pipeline.tiled_vae import TiledVAE

__all__ = ["TiledVAE"]


def __getattr__(name: str) -> Any:
    # torch takes a second to import, and the command line's --help does without
    if name == "TiledVAE":
        from tvae.pipeline.tiled_vae import TiledVAE

        globals()[name] = TiledVAE
        return TiledVAE
    raise AttributeError(f"module 'tvae.pipeline' has no attribute {name!r}")
