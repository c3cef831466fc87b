"""TAEHV: small autoencoders for the latents of video models, written by us from their architecture.

What is reproduced, and from where: madebyollin/taehv (MIT; no line of it is copied), ``taehv.py`` at commit
1f14a568f24bf8811e0a0ac601613e04fc1581e8. Names of tensors are those of its files, so that these load as they are.

==================  ==================================================================================================
pixels              from 0 to 1 inside, from -1 to 1 outside, as in diffusers; squares of p×p pixels become channels
convolutions        3×3 over single frames, zeros around each
memory              blocks that see their own input of the frame before beside it; zeros before the first frame
time, encoder       at three levels, two frames (or one) become one: 1×1 over their channels side by side
time, decoder       at three levels, one frame becomes two (or one) by a 1×1 of so many channels
latents             a point, already in the space of the diffusion model: no scale and no shift
lengths             a clip's end is filled up with its last frame; the first f - 1 frames of a decoded clip go, where f
                    frames make a latent, so that 1 + f·k frames come back
``TAECVX``          CogVideoX's: of an even number of latents no frame goes, and 2·f·k frames come back
super               another decoder, of 7×7 convolutions in single channels and 1×1 between them
==================  ==================================================================================================

MiniMax H3's (``taeh3``) goes through clips in pieces of 17 frames; it is left out.
"""

from tvae.pipeline.models.taehv.vae import TAECVX, TAEHV, TAEHVConfig

__all__ = ["TAECVX", "TAEHV", "TAEHVConfig"]
