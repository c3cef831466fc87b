"""A VAE of ComfyUI whose decode and encode run in strips, with the numbers of the untiled model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from tvae.pipeline.comfyui.in_steps import InSteps
from tvae.pipeline.comfyui.trees import cleaned, own_weights
from tvae.pipeline.comfyui.wan import as_diffusers
from tvae.pipeline.errors import PlanError, TvaeError, UsageError
from tvae.pipeline.models.calls import Side
from tvae.pipeline.tiled_vae import TiledVAE

__all__ = ["exact_vae", "is_exact"]

_HOOKS = ("comfy_has_chunked_io", "comfy_decode_estimate_is_reliable")
"""By which a model of ComfyUI says that it writes its own output, and that more than it asks for is not worth a try. A
plan needs neither."""
Asked = Callable[[Sequence[int], torch.dtype], float]
"""ComfyUI's hook: the shape of an input and the type -> bytes for one of its batch."""


def exact_vae(vae: Any, vram: str | int | None = None, *, allow_whole: bool = False) -> Any:
    """A copy of a VAE that ComfyUI loaded, which every node takes in its place. The VAE itself stays as it is.

    The copy has weights and a patcher of its own, which load it whole: ComfyUI may keep parts of other VAEs elsewhere.
    vram, allow_whole: as in TiledVAE. Raises UsageError for what is no VAE of images or videos.
    """
    vae.throw_exception_if_invalid()
    if getattr(vae, "latent_dim", 2) == 1 or getattr(vae, "extra_1d_channel", None) is not None:
        raise UsageError("this VAE is of sound, and strips divide pictures: use ComfyUI's own nodes for it")
    if vae.patcher.patches:
        raise UsageError("this VAE has patches (a LoRA), which its weights do not show: use ComfyUI's own nodes for it")
    from comfy.model_patcher import ModelPatcher

    model = own_weights(vae.patcher.model if is_exact(vae) else vae.first_stage_model).to(vae.patcher.offload_device)
    tiled = _tiled(model, vae, vram=vram, allow_whole=allow_whole)
    exact = copy.copy(vae)
    kind: Any = type(vae)
    exact.__class__ = _exact(kind)
    exact.first_stage_model = tiled
    exact.patcher = ModelPatcher(model, load_device=vae.patcher.load_device, offload_device=vae.patcher.offload_device)
    exact.disable_offload = True
    exact.memory_used_decode = partial(_asked, tiled, vae.device, "decode", vae.memory_used_decode)
    exact.memory_used_encode = partial(_asked, tiled, vae.device, "encode", vae.memory_used_encode)
    return exact


def is_exact(vae: Any) -> bool:
    """Did ``exact_vae`` make this one?"""
    return isinstance(vae.first_stage_model, TiledVAE)


def _tiled(model: nn.Module, vae: Any, **options: Any) -> TiledVAE:
    """What stands in the place of ComfyUI's module."""
    theirs = cleaned(model)
    steps = as_diffusers(theirs)
    if steps is not None:
        return InSteps(steps, theirs, vae.output_device, **options)
    tiled = TiledVAE(theirs, **options)
    for hook in _HOOKS:
        setattr(tiled, hook, False)
    return tiled


def _asked(tiled: TiledVAE, device: Any, side: Side, theirs: Asked, shape: Sequence[int], dtype: torch.dtype) -> float:
    """Bytes that ComfyUI is to have free for one of the batch: those of the plan, once the weights are on the device;
    before that, and where there is no plan, ComfyUI's own estimate."""
    if next(iter(tiled.parameters())).device.type == torch.device(device).type:
        try:
            return max(1, tiled.plan((1, *shape[1:]), side).peak_bytes)
        except TvaeError:
            pass  # the call itself says what is wrong
    return theirs(shape, dtype)


@cache
def _exact(base: Any) -> Any:
    """ComfyUI's class, without its tiles."""

    class ExactVAE(base):
        def decode(self, *args: Any, **kwargs: Any) -> Tensor:
            try:
                return super().decode(*args, **kwargs)
            finally:
                self.first_stage_model.release()  # ComfyUI counts on memory that only its own models take

        def encode(self, *args: Any, **kwargs: Any) -> Tensor:
            try:
                return super().encode(*args, **kwargs)
            finally:
                self.first_stage_model.release()

        def frame_count(self, latents: Tensor) -> int:
            """How many ``frames`` gives; of clips that are decoded whole, how many clips."""
            stage, count = self.first_stage_model, latents.shape[0]
            return count * stage.decode_output_shape(latents.shape)[2] if isinstance(stage, InSteps) else count

        def frames(self, latents: Tensor) -> Iterator[Tensor]:
            """Of latents [N, C, h, w] one picture [H, W, 3] in [0, 1] after the other; of a clip [1, C, t, h, w] its
            frames, as its steps decode them, or when all are decoded where its VAE has no steps."""
            stage = self.first_stage_model
            try:
                if isinstance(stage, InSteps):
                    yield from self._in_steps(stage, latents)
                else:
                    for one in latents.split(1):
                        yield from super().decode(one).flatten(0, -4)
            except torch.OutOfMemoryError as error:
                raise _no_memory() from error
            finally:
                stage.release()

        def _in_steps(self, stage: InSteps, latents: Tensor) -> Iterator[Tensor]:
            from comfy.model_management import load_models_gpu

            asked = self.memory_used_decode(latents.shape, self.vae_dtype)
            load_models_gpu([self.patcher], memory_required=asked, force_full_load=self.disable_offload)
            for clip in latents.to(self.vae_dtype).split(1):
                for part in stage.parts("decode", clip):
                    yield from self.process_output(part.to(self.output_device).float()).movedim(1, -1).flatten(0, -4)

        def decode_tiled(self, samples: Tensor, *_tiles: Any, **_sizes: Any) -> Tensor:
            return self.decode(samples)

        def encode_tiled(self, pixel_samples: Tensor, *_tiles: Any, **_sizes: Any) -> Tensor:
            return self.encode(pixel_samples)

        def decode_tiled_(self, *_: Any, **__: Any) -> Tensor:
            raise _no_memory()

        encode_tiled_ = decode_tiled_3d = encode_tiled_3d = decode_tiled_
        _decode_tiled_owned = _encode_tiled_owned = decode_tiled_  # of models with tiles of their own

    return ExactVAE


def _no_memory() -> PlanError:
    """In the place of tiles, which ComfyUI falls back on where memory runs out: those are not exact."""
    return PlanError("the device ran out of memory; free some, or give Exact VAE a smaller vram")
