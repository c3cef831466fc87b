"""The trainers whose caches tvae writes: each file of this folder has a ``TRAINER``."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from tvae.pipeline.caches.spec import Architecture, Trainer
from tvae.pipeline.errors import UsageError

if TYPE_CHECKING:
    from tvae.pipeline.session.model_info import ModelInfo

__all__ = ["LEFT_OUT", "TRAINERS", "architecture_of", "trainer_named"]

TRAINERS: dict[str, Trainer] = {
    found.name: found
    for found in (import_module(f"{__name__}.{module.name}").TRAINER for module in iter_modules(__path__))
}

_DEFAULT = (0.18215, 0.0)
"""Default scaling and shift of an AutoencoderKL's configuration."""

LEFT_OUT = {
    "finetrainers": "it takes latents beside text embeddings of the same numbers, which it makes with its own latents",
}
"""Why caches of these trainers cannot be written from outside; more in the folder's README."""


def trainer_named(name: str) -> Trainer:
    """Return the trainer of that name. Raises UsageError for an unknown one."""
    if name in LEFT_OUT:
        raise UsageError(f"tvae writes no cache for {name}: {LEFT_OUT[name]}")
    if name not in TRAINERS:
        raise UsageError(f"--for {name} is no trainer that tvae knows caches of; one of {', '.join(TRAINERS)}")
    return TRAINERS[name]


def architecture_of(trainer: Trainer, name: str | None, info: ModelInfo) -> Architecture:
    """Return the architecture of that name, or the only one that a VAE suits. Raises UsageError; nothing is guessed."""
    known = {one.name: one for one in trainer.architectures}
    if name is not None and name in trainer.refused:
        raise UsageError(f"tvae writes no cache of {trainer.name} for {name}: {trainer.refused[name]}")
    if name is not None and name not in known:
        raise UsageError(f"{trainer.name} has no architecture '{name}' that tvae can cache for; one of {_all(known)}")
    vae = f"the VAE '{info.id}' ({info.class_name}, {info.latent_channels} channels)"
    suited = {one.name: one for one in trainer.architectures if not _differs(one, info)}
    if name is not None:
        if name not in suited:
            raise UsageError(f"{vae} is not {trainer.name}'s for {name}: {_differs(known[name], info)}")
        return suited[name]
    if trainer.architectures[0].classes is None:  # where any VAE suits, raw latents are the plain ones
        return trainer.architectures[0]
    if not suited:
        raise UsageError(f"{trainer.name} trains nothing on latents of {vae} that tvae knows of; it has {_all(known)}")
    exact = {name: one for name, one in suited.items() if one.constants is None or _has(one.constants, info)}
    if len(exact) != 1:
        raise UsageError(f"{vae} may be {trainer.name}'s for {_all(exact or suited)}; say which with --arch")
    return next(iter(exact.values()))


def _differs(one: Architecture, info: ModelInfo) -> str:
    """Return what of the VAE does not suit an architecture, or an empty text."""
    if one.classes is not None and info.class_name not in one.classes:
        return f"that has {' or '.join(one.classes)}"
    if one.channels not in (None, info.latent_channels):
        return f"that has {one.channels} channels"
    if one.factor not in (None, info.spatial_factor):
        return f"that has {one.factor} pixels a latent, this {info.spatial_factor}"
    if one.constants is None:
        return ""
    from tvae.pipeline.models.published import published_kin  # and with it PyTorch, after a GPU has been started

    published, space = published_kin(info.weights_sha256), info.space
    if published is not None and published.scaling not in (None, one.constants):
        return f"it is the VAE of {published.note}, by its sha256"
    if space.unknown is None and not _has(one.constants, info) and (one.space == "model" or _is_known(info)):
        theirs = f"scale {one.constants[0]} and shift {one.constants[1]} on the way into model space"
        return f"that has {theirs}, this {space.scale[0]:.5g} and {space.shift[0]:.5g}"
    return ""


def _is_known(info: ModelInfo) -> bool:
    """Return whether the VAE's scaling is one of a model that trainers know.

    Raw latents do not depend on it, but it tells which model a VAE belongs to. A finetuned VAE may have any scaling,
    and the default is that of VAEs that were stored without one.
    """
    known = {architecture.constants for trainer in TRAINERS.values() for architecture in trainer.architectures}
    return any(_has(constants, info) for constants in known - {None, _DEFAULT} if constants is not None)


def _has(constants: tuple[float, float], info: ModelInfo) -> bool:
    scale, shift = constants
    space = info.space
    return len(space.scale) == 1 and abs(space.scale[0] - scale) < 1e-6 and abs(space.shift[0] - shift) < 1e-6


def _all(names: dict[str, Architecture]) -> str:
    return ", ".join(names)
