"""TAESD's later kin, which diffusers' AutoencoderTiny has no layers for, written by us from their architecture.

What is reproduced, and from where: madebyollin/taesd (MIT; no line of it is copied), ``taesd.py`` at commit 5cccb12.
Numbers of layers are those of its files.

==============  ======================================================================================================
pixels          from 0 to 1 inside, from -1 to 1 outside, as in diffusers; not clamped
convolutions    3×3, zeros around; three with ReLU between them make a block, whose input is added before a last ReLU
latents         a point; before decoding, values far from zero are brought near: 3·tanh(z / 3)
``pooled``      TAEF2, of FLUX.2: the three blocks nearest the latents first add to their input what 1×1 to four times
                the channels, a GroupNorm of four groups over the whole picture, ReLU and 1×1 back make of it
``deep``        TAESANA, of Sana: five halvings, and a decoder whose first levels are wider
==============  ======================================================================================================
"""

from tvae.pipeline.models.taesd.vae import TAESD, TAESDConfig

__all__ = ["TAESD", "TAESDConfig"]
