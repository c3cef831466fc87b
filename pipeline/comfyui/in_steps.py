"""A VAE of clips in the place of ComfyUI's own model, through which a clip goes chunk by chunk: a longer one takes no
more memory of the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tvae.pipeline.models.calls import Side
from tvae.pipeline.models.geometry import geometry_of
from tvae.pipeline.session.callers_module import compute_dtype, config_of
from tvae.pipeline.session.clip_plan import ClipPlan
from tvae.pipeline.session.clip_steps import last_is_alone
from tvae.pipeline.session.session import Session
from tvae.pipeline.settings.modes import plain_modes
from tvae.pipeline.tiled_vae import TiledVAE

__all__ = ["InSteps"]


class InSteps(TiledVAE):
    """Takes and gives clips [N, C, T, H, W] as ComfyUI's models do: tensors, the mean of the latents.

    ComfyUI leaves pixels where they are, and has the room for decoded ones ready, for models that say
    ``comfy_has_chunked_io``. A ComfyUI that does not know this gets decoded clips on its output device.
    """

    comfy_has_chunked_io = True

    def __init__(self, steps: nn.Module, theirs: nn.Module, output: torch.device, **options: Any) -> None:
        """steps: diffusers' class, which has steps. theirs: ComfyUI's module of the same weights, whose names they keep
        to who asks. output: where decoded clips and latents go. options: of TiledVAE."""
        super().__init__(steps, **options)
        self._parameters, self._buffers, self._modules = theirs._parameters, theirs._buffers, theirs._modules
        self.__dict__ |= {"_output": output}
        config = config_of(steps)
        self._geometry = geometry_of(type(steps).__name__, config, lambda: steps)

    def decode_output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of pixels, from that of latents [N, C, t, h, w]."""
        n, _, frames, height, width = shape
        known = self._geometry
        length = known.lead + (frames - known.lead) * (known.temporal or 1)
        return n, known.in_channels, length, height * known.spatial, width * known.spatial

    def decode(self, z: Tensor, output_buffer: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Latents to pixels around [-1, 1], in the buffer where there is one."""
        if output_buffer is None:
            output_buffer = torch.empty(self.decode_output_shape(tuple(z.shape)), dtype=z.dtype, device=self._output)
        for clip, into in zip(z.split(1), output_buffer.split(1), strict=True):
            at = 0
            for part in self.parts("decode", clip):
                into[:, :, at : at + part.shape[2]].copy_(part)
                at += part.shape[2]
        return output_buffer

    def encode(self, x: Tensor, device: Any = None) -> Tensor:  # type: ignore[override]
        """Pixels in [-1, 1], on any device, to the means of their latents. device: where ComfyUI has the model."""
        clips = []
        for clip in x.split(1):
            moments = [part.chunk(2, 1)[0].to(self._output) for part in self.parts("encode", clip)]
            clips.append(torch.cat(moments, 2))
        return torch.cat(clips)

    def parts(self, side: Side, clip: Tensor) -> Iterator[Tensor]:
        """What a side makes of one clip, chunk by chunk. The model may not be moved meanwhile."""
        session = self._of_weights()
        stream = session.stream(side)
        assert stream is not None, "of a class with steps"
        sizes = [*stream.cuts.sizes(stream.cuts.used(clip.shape[2]))]
        at = 0
        for n, size in enumerate(sizes):
            chunk = clip[:, :, at : at + size]
            with self._lock, plain_modes(session.device):
                part = stream.step(chunk, last=n == len(sizes) - 1 and last_is_alone(sizes))
            yield part
            at += size
            del part  # the next step is computed without it

    def plan(self, shape: tuple[int, ...], side: Side, **_call: Any) -> ClipPlan:
        """Of a clip that comes and goes."""
        with self._lock:
            return self._of_weights().plan_clip(side, tuple(shape))

    def _of_weights(self) -> Session:
        """The session for the weights as and where they are."""
        weight = next(iter(self.parameters()))
        with self._lock, plain_modes(weight.device):
            session = self._session(weight.device, compute_dtype(self.vae, weight.dtype))
        assert isinstance(session, Session), "of one device"
        return session
