"""AutoencoderKL (the built-in VAE, Stable Diffusion 1 to 3, SDXL, FLUX.1): its graph, without building the model.

Importing diffusers and what that imports takes 2 to 12 seconds, PyTorch's exporter 1 to 2, and a capture 1 to 4. This
class of models has a page of layers, so commands write the graph themselves. Names of weights are diffusers', and so
are the numbers; the tests compare the two. Configurations that ``config_of`` does not know go through diffusers.
"""

from tvae.pipeline.models.kl.config import CLASS_NAME, KLConfig, config_of
from tvae.pipeline.models.kl.graph import graph_of

__all__ = ["CLASS_NAME", "KLConfig", "config_of", "graph_of"]
