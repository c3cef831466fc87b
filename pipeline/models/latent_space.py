"""Raw and model space: what the encoder gives, and what the diffusion model sees.

Model space is an affine map of raw space, z_model = (z_raw - shift) · scale, with constants that come with the VAE.
Which constants, and where they are kept, each family's file says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.errors import InputError

__all__ = ["LatentSpace", "floats", "from_config", "number"]


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
    unknown: str | None = None
    """Why nothing is known of model space: there is raw space alone."""

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

    def logvar_to_raw(self, logvar: Tensor) -> Tensor:
        """Inverse of :meth:`logvar_to_model`."""
        _, scale = self._constants(logvar)
        return _unfold((logvar.float() - 2 * scale.abs().log()).to(logvar.dtype), self.patch)

    def to_json(self) -> dict[str, Any]:
        """JSON-able, empty if nothing is known; :meth:`from_json` is its inverse otherwise."""
        if self.unknown is not None:
            return {}
        return {"shift": list(self.shift), "scale": list(self.scale), "frames": self.frames, "patch": self.patch}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LatentSpace:
        """`ValueError` when the data is not what :meth:`to_json` gives."""
        try:
            return cls(floats(data["shift"]), floats(data["scale"]), int(data["frames"]), int(data["patch"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the constants of a latent space: {error}") from error

    def _constants(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Shift and scale as float32 tensors that broadcast against z [N, C, (t,) h, w]."""
        if self.unknown is not None:
            raise InputError(
                f"nothing is known of this VAE's model space: {self.unknown}; keep raw space (--space raw)"
            )
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


def from_config(config: Mapping[str, Any], stored: tuple[tuple[float, ...], ...] = ()) -> LatentSpace:
    """As most families have it: (z - mean) · scaling / std where there are statistics, else (z - shift) · scaling.

    stored: mean and deviation from among the weights, in the place of ``latents_mean`` and ``latents_std``.
    """
    scaling = number(config.get("scaling_factor"), 1.0)
    mean, std = stored or (config.get("latents_mean"), config.get("latents_std"))
    if mean is not None and std is not None:
        return LatentSpace(floats(mean), tuple(scaling / s for s in floats(std)))
    return LatentSpace((number(config.get("shift_factor"), 0.0),), (scaling,))


def number(value: Any, default: float) -> float:
    """Of a configuration, where None means that it says nothing."""
    return default if value is None else float(value)


def floats(values: Any) -> tuple[float, ...]:
    """Of a list of numbers."""
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
