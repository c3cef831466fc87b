"""What there is to say of a family of VAEs: one value of ``Family`` a class of models, in a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from tvae.pipeline.models.calls import Frames, Side
from tvae.pipeline.models.latent_space import LatentSpace, from_config
from tvae.pipeline.models.layout import Kin, Layout
from tvae.pipeline.models.stepping import Stepping

__all__ = ["ALONE", "CLIP", "IN_BATCH", "Checkpoint", "Config", "Family", "LatentGeometry", "Substitution"]
__all__ += ["blocks", "causal", "given", "halvings", "levels"]

Config = Mapping[str, Any]
Geometry = Callable[[Config], "LatentGeometry"]

IN_BATCH: dict[Side, Frames] = {"encode": Frames(0), "decode": Frames(0, "num_frames")}
CLIP: dict[Side, Frames] = {"encode": Frames(), "decode": Frames()}
ALONE: dict[Side, Frames] = {"encode": Frames(alone=True), "decode": Frames(alone=True)}
"""Of families that normalise every pixel by itself: nothing waits for the whole clip, frames go out as they come in."""


@dataclass(frozen=True)
class LatentGeometry:
    """How pixels and latents relate.

    spatial: pixels per latent in height and width. temporal: frames per latent frame, None for an image VAE.
    lead: frames of a clip that stand before the multiples of ``temporal`` (1 for causal models: T = 1 + k·temporal).
    latent_group: where it is more than 1, a clip is whole groups of so many latent frames, or those and the lead; it is
    decoded group by group, and without a lead in the number of latent frames, no frame stands apart.
    """

    spatial: int
    temporal: int | None = None
    lead: int = 0
    latent_channels: int = 4
    in_channels: int = 3
    latent_group: int = 1


@dataclass(frozen=True)
class Substitution:
    """A stand-in for a class's public call, and why there is one."""

    reason: str
    encode: Callable[..., Any]
    decode: Callable[..., Any]


@dataclass(frozen=True)
class Checkpoint:
    """The configuration of a public checkpoint; what is not named is its default. ``note``: which one it is."""

    config: dict[str, Any]
    note: str


@dataclass(frozen=True)
class Family:
    """A class of diffusers or our own.

    class_name: as configurations name it. geometry: how pixels and latents relate. note: for ``tvae models``.
    frames_in_batch: it takes a clip as a batch and is told how many frames. point: its encoder gives a point, not a
    distribution. frames: where the frames of a side are, of a family whose reference sees a whole clip, so that strips
    may divide its time. steps: of one whose reference goes through a clip in steps with caches. statistics: names of
    weights that hold the latents' mean and deviation (or what ``space`` makes of them). space: (configuration,
    statistics) -> latent space. substitution: in the place of the class's own calls. patched: what a capture needs
    otherwise inside the model, for as long as it lasts. checkpoints: public ones to measure with, by the name that
    ``--config`` takes. layouts: names by which a file of weights alone is known. kin: public models of the class that
    such a file may be of; without any, its configuration is complete. files: published files of its VAE alone, the
    names of the models they are of by the sha256 of all their bytes; ``Kin.files`` are those that tell which it is.
    """

    class_name: str
    kind: Literal["image", "video"]
    geometry: Geometry
    note: str = ""
    frames_in_batch: bool = False
    point: bool = False
    frames: Mapping[Side, Frames] = field(default_factory=dict)
    steps: Mapping[Side, Stepping] = field(default_factory=dict)
    statistics: tuple[str, ...] = ()
    space: Callable[[Config, tuple[tuple[float, ...], ...]], LatentSpace] = from_config
    substitution: Substitution | None = None
    patched: Callable[[nn.Module], AbstractContextManager[None]] = lambda _module: nullcontext()
    checkpoints: Mapping[str, Checkpoint] = field(default_factory=dict)
    layouts: tuple[Layout, ...] = ()
    kin: tuple[Kin, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


# -- geometries that several families share ---------------------------------------------------------------------------
def blocks(config: Config, key: str, default: int) -> int:
    """Number of resolution levels."""
    return len(config.get(key) or range(default))


def halvings(key: str, default: int, latent: int) -> Geometry:
    """Every level but the last halves height and width."""
    return lambda c: LatentGeometry(
        2 ** (blocks(c, key, default) - 1),
        latent_channels=c.get("latent_channels", latent),
        in_channels=c.get("in_channels", 3),
    )


def causal(spatial: Callable[[Config], int], temporal: Callable[[Config], int], latent: int) -> Geometry:
    """First frame apart, then ``temporal`` frames to a latent frame."""
    return lambda c: LatentGeometry(spatial(c), temporal(c), 1, c.get("latent_channels", c.get("z_dim", latent)))


def given(key: str, default: int) -> Callable[[Config], int]:
    """What the configuration says."""
    return lambda c: int(c.get(key) or default)


def levels(config: Config) -> int:
    """Pixels per latent where every level but the last halves height and width."""
    return 2 ** (blocks(config, "block_out_channels", 4) - 1)
