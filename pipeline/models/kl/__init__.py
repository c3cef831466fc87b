"""AutoencoderKL (the built-in VAE, Stable Diffusion 1 to 3, SDXL, FLUX.1) in layers of our own.

Commands capture their graphs from it: importing diffusers, and what that imports, takes 2 to 12 seconds, and this class
of models needs a page of layers. Names of weights are diffusers', and so are the numbers; the tests compare the two.
Configurations that ``config_of`` does not know go through diffusers.
"""

from tvae.pipeline.models.kl.config import CLASS_NAME, KLConfig, config_of
from tvae.pipeline.models.kl.vae import KLVAE

__all__ = ["CLASS_NAME", "KLVAE", "KLConfig", "config_of"]
