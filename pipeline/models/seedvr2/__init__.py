"""SeedVR2's video VAE, written by us from its architecture; it loads the published ``ema_vae`` weights by their names.

What is reproduced, and from where: ByteDance-Seed/SeedVR (Apache-2.0; no line of it is copied), there in

- ``models/video_vae_v3/s8_c16_t4_inflation_sd3.yaml``: configuration; ``configs_3b/main.yaml``: scale of latents;
- ``models/video_vae_v3/modules/attn_video_vae.py``: encoder, decoder, their blocks, the order of shuffled channels;
- ``models/video_vae_v3/modules/causal_inflation_lib.py``: causal convolutions, their memory, norms per frame.

``ema_vae_fp16.safetensors`` is the same weights without pickle, named in ``src/utils/model_registry.py`` of
numz/ComfyUI-SeedVR2_VideoUpscaler, whose program tells of 250 tensors and 478.07 MiB when it loads them; so has ours.

==================  ==================================================================================================
size                8 pixels to a latent in height and width, 4 frames to a latent frame after the first; 16 channels
convolutions        zeros around each frame, nothing behind the last frame, copies of the first frame before it
GroupNorm           32 groups, over one frame at a time
attention           one head, in the middle of either side, over one frame at a time
downsampling        a row and a column of zeros below and to the right, stride 2; in time at the last two of three
upsampling          1×1×1 to 4 or 8 times the channels, shuffled into pixels and frames; then 3×3×3
posterior           Gaussian, mean and log variance from the last convolution, without a quantising one
model space         z · 0.9152, no shift
==================  ==================================================================================================

The published pipeline encodes 5 frames, then 4 at a time (``split_size: 4``), every convolution keeping the frames that
its next windows begin with. As norms and attention see single frames, that equals one pass over the clip: the pass is
``encode`` and ``decode`` here, the slices are ``encode_step`` and ``decode_step``. Blended tiling is no part of it. The
published code, run once in float64 on the random weights of a small configuration, agrees with ours to 1e-15, with
slices and without, with its memory limits and without, at sizes that are no multiples of 8 too.
"""

from tvae.pipeline.models.seedvr2.vae import SeedVR2Config, SeedVR2VAE

__all__ = ["SeedVR2Config", "SeedVR2VAE"]
