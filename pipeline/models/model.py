"""A VAE as jobs and commands compute with it: opened by name, tensors in, tensors out.

Unlike ``TiledVAE`` it holds weights rather than a module. The module is built (and diffusers imported) only when a
graph has to be captured; from the second run on the built-in VAE needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from tvae.pipeline.compiled import Call, Compiled
from tvae.pipeline.engine.plan import Plan
from tvae.pipeline.errors import UsageError
from tvae.pipeline.graph_store import class_source_digest
from tvae.pipeline.hardware import backend_settings, choose_preset, pick_device
from tvae.pipeline.models.families import FAMILIES, Geometry, geometry_of
from tvae.pipeline.models.load import load_module, load_weights, locate_vae
from tvae.pipeline.models.reference import Side
from tvae.pipeline.models.source import VaeSource
from tvae.pipeline.models.space import LatentSpace, space_of
from tvae.pipeline.outputs import Posterior, posterior_of
from tvae.pipeline.weights import PreparedWeights
from tvae.presets import Preset

__all__ = ["DTYPES", "Model", "ModelInfo", "Posterior", "open_model"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_POINTS = {"AutoencoderTiny", "AutoencoderDC", "VQModel", "AutoencoderKLCosmos"}
"""Classes whose encoder gives a point, not a distribution."""


@dataclass(frozen=True)
class ModelInfo:
    """What latents of this VAE say about it, and what its inputs must be.

    Clips of a video VAE have ``lead_frames`` + k·``temporal_factor`` frames; the factor is None for an image VAE.
    """

    id: str
    class_name: str
    config_hash: str
    weights_sha256: str
    spatial_factor: int
    temporal_factor: int | None
    lead_frames: int
    latent_channels: int
    in_channels: int
    posterior: bool
    space: LatentSpace


def open_model(
    spec: str,
    *,
    preset: str = "auto",
    dtype: str | None = None,
    device: str | None = None,
    strip: int | None = None,
    allow_whole: bool = False,
) -> Model:
    """Open ``builtin``, a diffusers folder or a hub id for computing. Raises UsageError before any work.

    dtype: float32, bfloat16, float16 (or fp32, bf16, fp16); None takes the preset's. strip: latent rows.
    """
    where = pick_device(device)
    chosen = choose_preset(preset, where)
    name = _SHORT.get(dtype or "", dtype or chosen.dtype)
    if name not in DTYPES:
        raise UsageError(f"unknown dtype '{dtype}'; one of {', '.join((*DTYPES, *_SHORT))}")
    if strip is not None and strip < 1:
        raise UsageError(f"a strip has at least one latent row, not {strip}")
    source = locate_vae(spec)
    kind = DTYPES[name]
    if kind == torch.float16 and source.config.get("force_upcast", False):
        kind = torch.float32  # the checkpoint overflows in float16 and says so
    return Model(source, chosen, kind, where, strip or chosen.strip_rows, allow_whole)


class Model:
    """See the module's docstring. ``open_model`` makes one."""

    def __init__(
        self, source: VaeSource, preset: Preset, dtype: torch.dtype, device: torch.device, strip: int, allow_whole: bool
    ) -> None:
        self.source, self.preset, self.dtype, self.device, self.strip = source, preset, dtype, device, strip
        self._loaded: nn.Module | None = None
        self._stored: dict[str, Tensor] = {}
        last = preset.memory_layout == "channels_last"
        self._weights = PreparedWeights(self._by_name, dtype, last)
        shapes = {name: list(spec.shape) for name, spec in sorted(source.tensors.items())}
        facts = {"class": source.class_name, "config": source.config_sha256, "weights": shapes}
        digest = class_source_digest(_module_of(source.class_name))
        self._sides: dict[str, Compiled] = {
            side: Compiled(side, self._module, digest, facts, allow_whole=allow_whole) for side in ("encode", "decode")
        }

    @cached_property
    def info(self) -> ModelInfo:
        """Identity and geometry; the weights' checksum is computed on first use."""
        geometry = self.geometry
        return ModelInfo(
            id=self.source.id,
            class_name=self.source.class_name,
            config_hash=self.source.config_sha256,
            weights_sha256=self.source.weights_sha256,
            spatial_factor=geometry.spatial,
            temporal_factor=geometry.temporal,
            lead_frames=geometry.lead,
            latent_channels=geometry.latent_channels,
            in_channels=geometry.in_channels,
            posterior=self.source.class_name not in _POINTS,
            space=space_of(self.source),
        )

    @cached_property
    def geometry(self) -> Geometry:
        """How pixels and latents relate."""
        return geometry_of(self.source.class_name, self.source.config, lambda: load_module(self.source))

    def encode(self, x: Tensor) -> Posterior:
        """x [N, 3, H, W] (video VAE: [N, 3, T, H, W]) in [-1, 1], of sizes it can represent -> raw-space posterior."""
        if self._frames_in_batch:
            found = self._run("encode", x[0].transpose(0, 1), Call())
            flip = (found.mean, found.logvar)
            mean, logvar = (None if t is None else t.transpose(0, 1).unsqueeze(0) for t in flip)
            assert mean is not None
            return Posterior(mean, logvar)
        return self._run("encode", x, Call())

    def decode(self, z: Tensor) -> Tensor:
        """Raw-space latents [N, C, h, w] (video VAE: [N, C, t, h, w]) -> pixels in [-1, 1], not clamped."""
        if self._frames_in_batch:
            frames = z[0].transpose(0, 1)
            out = self._run("decode", frames, Call(options=(("num_frames", len(frames)),))).mean
            return out.transpose(0, 1).unsqueeze(0)
        return self._run("decode", z, Call()).mean

    def plan(self, shape: tuple[int, ...], side: Side) -> Plan:
        """What ``encode`` or ``decode`` would do with an input of this shape. Computes nothing."""
        call = Call()
        if self._frames_in_batch:
            shape = (shape[2], shape[1], *shape[3:])
            call = Call(options=(("num_frames", shape[0]),)) if side == "decode" else call
        example = torch.empty(shape, dtype=self.dtype, device=self.device)
        with backend_settings(self.preset):
            return self._sides[side].plan([example], self.strip, call)

    @property
    def _frames_in_batch(self) -> bool:
        family = FAMILIES.get(self.source.class_name)
        return family is not None and family.frames_in_batch

    def _run(self, side: Side, x: Tensor, call: Call) -> Posterior:
        """The side's result; pixels come back as the mean of a point."""
        last = self.preset.memory_layout == "channels_last"
        x = x.to(self.device, self.dtype).contiguous()
        with backend_settings(self.preset):
            tensors, spec = self._sides[side].run([x], self._weights, self.strip, call, channels_last=last)
        return posterior_of(spec, tensors) if side == "encode" else Posterior(tensors[0], None)

    def _module(self) -> nn.Module:
        if self._loaded is None:
            self._loaded = load_module(self.source, self.dtype, self.device)
        return self._loaded

    def _by_name(self, names: Sequence[str]) -> Mapping[str, Tensor]:
        """Weights on the device: from the files where their names are the module's, else from the module."""
        if not self._stored and self._loaded is None and self.source.keys_are_current:
            self._stored = {k: self._cast(t) for k, t in load_weights(self.source).items()}
        if any(n not in self._stored for n in names):  # buffers that are computed, not stored; weights of older names
            module = self._module()
            named: dict[str, Any] = dict(module.named_parameters(remove_duplicate=False))
            self._stored = named | dict(module.named_buffers(remove_duplicate=False))
        return self._stored

    def _cast(self, weight: Tensor) -> Tensor:
        return weight.to(self.device, self.dtype if weight.is_floating_point() else weight.dtype)


def _module_of(class_name: str) -> str:
    """Where diffusers defines an autoencoder, found without importing diffusers: the file that holds the class."""
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec("diffusers")
    folder = Path(spec.origin).parent / "models" / "autoencoders" if spec and spec.origin else None
    for file in sorted(folder.glob("*.py")) if folder else []:
        if f"\nclass {class_name}(" in file.read_text(encoding="utf-8"):
            return f"diffusers.models.autoencoders.{file.stem}"
    return "diffusers"
