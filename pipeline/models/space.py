"""Raw and model space: what the encoder gives, and what the diffusion model sees.

Model space is an affine map of raw space, z_model = (z_raw - shift) · scale, with constants that come with the VAE.
Which constants, and where they are kept, differs by family; the formulas are those of the diffusers pipelines:

==============================  =====================================================  ================================
classes                         z_model                                                from (diffusers/pipelines)
==============================  =====================================================  ================================
AutoencoderKL, Tiny             (z - shift_factor) · scaling_factor                    stable_diffusion_3, flux
AutoencoderKL with statistics   (z - latents_mean) · scaling_factor / latents_std      stable_diffusion_xl (img2img)
DC, VQ, HunyuanVideo and -1.5,  z · scaling_factor                                     sana, latent_diffusion,
HunyuanImage, CogVideoX,                                                               hunyuan_video(1_5),
Allegro, Magvit,                                                                       hunyuan_image, cogvideo,
TemporalDecoder, Asymmetric                                                            allegro, easyanimate, …
HunyuanImageRefiner             unknown: two frames become channels of one             hunyuan_image (refiner)
SeedVR2                         z · scaling_factor                                     not diffusers: `models/seedvr2`
Wan, QwenImage                  (z - latents_mean) / latents_std                       wan, qwenimage, cosmos2
Mochi                           (z - latents_mean) · scaling_factor / latents_std      mochi
LTXVideo, LTX2Video             the same, statistics stored among the weights          ltx, ltx2 (`_normalize_latents`)
Cosmos                          (z - latents_mean) · sigma_data / latents_std,         cosmos (text2world)
                                statistics per channel and latent frame
Flux2                           squares of 2×2 latents become channels, then           flux2 (`_encode_vae_image`)
                                (z - running_mean) / √(running_var + batch_norm_eps)
KVAE                            unknown: no pipeline of diffusers uses it              none
RAE                             z: its own encode normalises                           rae_dit
TAEHV, TAECVX                   z: its own encode gives model space                    not diffusers: `models/taehv`
TAESD                           z; of FLUX.2, squares of 2×2 latents become channels   not diffusers: `models/taesd`
==============================  =====================================================  ================================
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.geometry import family_geometry
from tvae.pipeline.models.latent_space import LatentSpace, from_config
from tvae.pipeline.models.load import load_weights
from tvae.pipeline.models.source import VaeSource

__all__ = ["latent_space", "space_of"]


def space_of(source: VaeSource) -> LatentSpace:
    """Latent space of a VAE on disk; reads at most the few tensors that hold statistics."""
    if source.found is not None and (unknown := source.found.space_unknown) is not None:
        return LatentSpace(unknown=unknown)
    return latent_space(source.class_name, source.config, load_weights(source, _statistics(source.class_name)))


def latent_space(class_name: str, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> LatentSpace:
    """From a VAE's class name, its configuration and its weights (a `state_dict`, or part of it).

    Only the constants that its family keeps there are read from `weights`; `UsageError` if they are missing.
    `UsageError` for a configuration whose constants are no numbers. Where they are not as many as channels of
    latents, model space is unknown.
    """
    try:
        found = _found(class_name, config, weights)
        family = FAMILIES.get(class_name)
        if family is None or family.statistics:  # those among the weights are the model's own
            return found
        return _fitting(found, family_geometry(class_name, config).latent_channels)
    except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
        raise UsageError(f"{class_name}: its configuration has unusable latent statistics: {error}") from error


def _found(class_name: str, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> LatentSpace:
    if class_name == "AutoencoderRAE":
        return LatentSpace()
    family, stored = FAMILIES.get(class_name), list[tuple[float, ...]]()
    for name in _statistics(class_name):
        if name not in weights:
            raise UsageError(f"{class_name}: its latent statistics '{name}' are missing from the weights")
        stored.append(tuple(weights[name].double().tolist()))
    if config and not stored and not config.keys() & {"scaling_factor", "latents_mean"}:
        config = {**_defaults(class_name), **config}  # saved before these keys were: sd-vae-ft-mse, for one
    return from_config(config, tuple(stored)) if family is None else family.space(config, tuple(stored))


def _fitting(space: LatentSpace, channels: int) -> LatentSpace:
    for values in (space.shift, space.scale):
        if len(values) not in (1, channels * space.frames * space.patch**2):
            return LatentSpace(unknown=f"its latent statistics have {len(values)} values for {channels} channels")
    return space


def _statistics(class_name: str) -> tuple[str, ...]:
    return FAMILIES[class_name].statistics if class_name in FAMILIES else ()


def _defaults(class_name: str) -> dict[str, Any]:
    """Default values of a diffusers class's configuration; costs the import of diffusers."""
    from diffusers.models import autoencoders

    cls = getattr(autoencoders, class_name, None)
    parameters = inspect.signature(cls.__init__).parameters if cls else {}
    return {name: p.default for name, p in parameters.items() if p.default is not p.empty}
