"""Raw and model space: what the encoder gives, and what the diffusion model sees.

Model space is an affine map of raw space, z_model = (z_raw - shift) · scale, with constants that come with the VAE.
Which constants, and where they are kept, differs by family; the formulas are those of the diffusers pipelines:

==============================  =====================================================  ================================
classes                         z_model                                                from (diffusers/pipelines)
==============================  =====================================================  ================================
AutoencoderKL, Tiny             (z - shift_factor) · scaling_factor                    stable_diffusion_3, flux
AutoencoderKL with statistics   (z - latents_mean) · scaling_factor / latents_std      stable_diffusion_xl (img2img)
DC, VQ, HunyuanVideo and -1.5,  z · scaling_factor                                     sana, latent_diffusion,
CogVideoX, Allegro, Magvit,                                                            hunyuan_video(1_5), cogvideo,
TemporalDecoder                                                                        allegro, easyanimate, …
SeedVR2                         z · scaling_factor                                     not diffusers: `models/seedvr2`
Wan, QwenImage                  (z - latents_mean) / latents_std                       wan, qwenimage, cosmos2
Mochi                           (z - latents_mean) · scaling_factor / latents_std      mochi
LTXVideo, LTX2Video             the same, statistics stored among the weights          ltx, ltx2 (`_normalize_latents`)
Cosmos                          (z - latents_mean) · sigma_data / latents_std,         cosmos (text2world)
                                statistics per channel and latent frame
Flux2                           squares of 2×2 latents become channels, then           flux2 (`_encode_vae_image`)
                                (z - running_mean) / √(running_var + batch_norm_eps)
RAE                             z: its own encode normalises                           rae_dit
==============================  =====================================================  ================================
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.models.load import load_weights
from tvae.pipeline.models.source import VaeSource

COSMOS_SIGMA_DATA = 0.5
"""Of the scheduler that Cosmos 1.0 ships with (EDMEulerScheduler); the VAE's own files do not hold it."""

_STORED_STATISTICS = ("AutoencoderKLLTXVideo", "AutoencoderKLLTX2Video")
_STATISTICS_KEYS = {
    **dict.fromkeys(_STORED_STATISTICS, ("latents_mean", "latents_std")),
    "AutoencoderKLFlux2": ("bn.running_mean", "bn.running_var"),
}
"""Families whose constants lie among the weights."""


@dataclass(frozen=True)
class LatentSpace:
    """The way from raw to model space and back.

    `shift` and `scale` hold one value for all, one a channel, or one a channel and latent frame (channel-major).
    """

    shift: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    frames: int = 1
    """For how many latent frames there are constants; 1: every frame has the same."""
    patch: int = 1
    """Model space folds squares of patch × patch latents into channels (channel, row, column)."""

    @classmethod
    def of(cls, class_name: str, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> LatentSpace:
        """From a VAE's class name, its configuration and its weights (a `state_dict`, or part of it).

        Only the constants that the module docstring says are stored there are read from `weights`; `UsageError`
        if they are missing. `UsageError` for a configuration whose constants are no numbers.
        """
        try:
            return _space(class_name, config, weights)
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise UsageError(f"{class_name}: its configuration's latent statistics are of no use: {error}") from error

    def to_model(self, z: Tensor) -> Tensor:
        """[N, C, (t,) h, w] raw → model space; with a patch p → [N, C·p², (t,) h/p, w/p]. Keeps the type.

        Computed in float32. `InputError` if h or w is no multiple of the patch, or t exceeds the constants.
        """
        z = _fold(z, self.patch)
        shift, scale = self._constants(z)
        return ((z.float() - shift) * scale).to(z.dtype)

    def to_raw(self, z: Tensor) -> Tensor:
        """Inverse of :meth:`to_model`."""
        shift, scale = self._constants(z)
        return _unfold((z.float() / scale + shift).to(z.dtype), self.patch)

    def logvar_to_model(self, logvar: Tensor) -> Tensor:
        """The same for a log variance: the variance of an affine map's value grows by scale²."""
        logvar = _fold(logvar, self.patch)
        _, scale = self._constants(logvar)
        return (logvar.float() + 2 * scale.abs().log()).to(logvar.dtype)

    def to_json(self) -> dict[str, Any]:
        """JSON-able; :meth:`from_json` is its inverse."""
        return {"shift": list(self.shift), "scale": list(self.scale), "frames": self.frames, "patch": self.patch}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LatentSpace:
        """`ValueError` when the data is not what :meth:`to_json` gives."""
        try:
            return cls(_floats(data["shift"]), _floats(data["scale"]), int(data["frames"]), int(data["patch"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the constants of a latent space: {error}") from error

    def _constants(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Shift and scale as float32 tensors that broadcast against z [N, C, (t,) h, w]."""
        if self.frames > 1 and z.shape[2] > self.frames:
            raise InputError(
                f"the VAE's statistics cover {self.frames} latent frames, the clip has {z.shape[2]}; "
                "keep raw space (--space raw)"
            )
        return self._constant(self.shift, z), self._constant(self.scale, z)

    def _constant(self, values: tuple[float, ...], z: Tensor) -> Tensor:
        constant = torch.tensor(values, dtype=torch.float32, device=z.device)
        if self.frames > 1 and len(values) > 1:
            return constant.view(1, -1, self.frames, 1, 1)[:, :, : z.shape[2]]
        return constant.view(1, -1, *[1] * (z.ndim - 2))


def space_of(source: VaeSource) -> LatentSpace:
    """Latent space of a VAE on disk; reads at most the few tensors that hold statistics."""
    names = _STATISTICS_KEYS.get(source.class_name, ())
    return LatentSpace.of(source.class_name, source.config, load_weights(source, names))


def _space(class_name: str, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> LatentSpace:
    if class_name == "AutoencoderRAE":
        return LatentSpace()
    stored: list[Any] = []
    for name in _STATISTICS_KEYS.get(class_name, ()):
        if name not in weights:
            raise UsageError(f"{class_name}: its latent statistics '{name}' are missing from the weights")
        stored.append(tuple(weights[name].double().tolist()))
    if class_name == "AutoencoderKLFlux2":
        mean, variance = stored
        epsilon, patch = float(config.get("batch_norm_eps", 1e-4)), config.get("patch_size", (2, 2))
        if patch[0] != patch[1]:
            raise ValueError(f"patch_size {patch} is not square")
        return LatentSpace(mean, tuple(1 / math.sqrt(v + epsilon) for v in variance), patch=int(patch[0]))
    if config and not stored and not config.keys() & {"scaling_factor", "latents_mean"}:
        config = {**_defaults(class_name), **config}  # saved before these keys were: sd-vae-ft-mse, for one
    scaling = _number(config.get("scaling_factor"), 1.0)
    mean, std = stored if stored else (config.get("latents_mean"), config.get("latents_std"))
    if class_name == "AutoencoderKLCosmos":
        if mean is None or std is None:
            return LatentSpace(scale=(COSMOS_SIGMA_DATA,))
        frames = len(mean) // int(config["latent_channels"])
        return LatentSpace(_floats(mean), tuple(COSMOS_SIGMA_DATA / s for s in _floats(std)), frames=frames)
    if mean is not None and std is not None:
        return LatentSpace(_floats(mean), tuple(scaling / s for s in _floats(std)))
    return LatentSpace((_number(config.get("shift_factor"), 0.0),), (scaling,))


def _defaults(class_name: str) -> dict[str, Any]:
    """Default values of a diffusers class's configuration; costs the import of diffusers."""
    from diffusers.models import autoencoders

    cls = getattr(autoencoders, class_name, None)
    parameters = inspect.signature(cls.__init__).parameters if cls else {}
    return {name: p.default for name, p in parameters.items() if p.default is not p.empty}


def _number(value: Any, default: float) -> float:
    return default if value is None else float(value)


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _fold(z: Tensor, patch: int) -> Tensor:
    """[N, C, (t,) h, w] → [N, C·p², (t,) h/p, w/p]; new channels in the order (channel, row, column)."""
    if patch == 1:
        return z
    *_, h, w = z.shape
    if h % patch or w % patch:
        raise InputError(
            f"model space of this VAE needs latents in squares of {patch}x{patch}, found {h}x{w}; "
            "keep raw space (--space raw) or choose another --size"
        )
    z = z.unflatten(-1, (w // patch, patch)).unflatten(-3, (h // patch, patch))  # [N, C, (t,) h/p, p, w/p, p]
    return z.movedim((-3, -1), (2, 3)).flatten(1, 3)


def _unfold(z: Tensor, patch: int) -> Tensor:
    """Inverse of :func:`_fold`."""
    if patch == 1:
        return z
    z = z.unflatten(1, (z.shape[1] // patch**2, patch, patch))  # [N, C, p, p, (t,) h/p, w/p]
    return z.movedim((2, 3), (-3, -1)).flatten(-2, -1).flatten(-3, -2)
