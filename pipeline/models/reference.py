"""The reference: the call whose numbers the engine reproduces, and the few substitutions it takes to capture it.

The reference is one call of the model's own ``encode`` or ``decode`` on the whole input, with every blended tiling off.
Loops over temporal chunks with caches that a model runs by itself belong to it. Each substitution below changes how the
reference is reached, not what it computes, and has a test of its own.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from tvae.pipeline.models.recognise import family_of

__all__ = ["BLENDED", "SIDES", "SUBSTITUTIONS", "Side", "Substitution", "call_reference", "reference_mode", "skeleton"]

Side = Literal["encode", "decode"]
SIDES: tuple[Side, ...] = get_args(Side)

BLENDED = ("use_tiling", "use_slicing", "use_framewise_encoding", "use_framewise_decoding")


@contextmanager
def reference_mode(module: nn.Module) -> Iterator[None]:
    """The module as the reference wants it: inference behaviour, no blended tiling. All is restored afterwards."""
    before = {name: getattr(module, name) for name in BLENDED if hasattr(module, name)}
    training = [m for m in module.modules() if m.training]
    try:
        for name in before:
            setattr(module, name, False)
        for part in training:
            part.training = False
        with _masks_without_loops(module):
            yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)
        for part in training:
            part.training = True


def call_reference(module: nn.Module, side: Side, *args: Any, **kwargs: Any) -> Any:
    """The model's own ``encode`` or ``decode``, or its substitute. To be called within ``reference_mode``."""
    substitute = SUBSTITUTIONS.get(family_of(module) or "")  # of the class's own calls, not of what replaces them
    if substitute is not None:
        run: Callable[..., Any] = substitute.encode if side == "encode" else substitute.decode
        return run(module, *args, **kwargs)
    return getattr(module, side)(*args, **kwargs)


# -- substitutions -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Substitution:
    """A stand-in for a class's public call, and why there is one."""

    reason: str
    encode: Callable[..., Any]
    decode: Callable[..., Any]


def _per_frame(conv: nn.Module, x_bcthw: Tensor) -> Tensor:
    """A 2-D convolution on every frame."""
    frames = x_bcthw.permute(0, 2, 1, 3, 4).flatten(0, 1)
    return conv(frames).unflatten(0, (x_bcthw.shape[0], -1)).permute(0, 2, 1, 3, 4)


def _allegro_encode(module: Any, x: Tensor) -> Any:
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
    from diffusers.models.modeling_outputs import AutoencoderKLOutput

    moments = _per_frame(module.quant_conv, module.encoder(x))
    return AutoencoderKLOutput(latent_dist=DiagonalGaussianDistribution(moments))


def _allegro_decode(module: Any, z: Tensor) -> Any:
    from diffusers.models.autoencoders.vae import DecoderOutput

    return DecoderOutput(sample=module.decoder(_per_frame(module.post_quant_conv, z)))


SUBSTITUTIONS: dict[str, Substitution] = {
    "AutoencoderKLAllegro": Substitution(
        "its public calls raise unless blended tiling is on; encoder and decoder are called on the whole clip, with "
        "the per-frame quantisation convolutions between them as its tiled calls apply them",
        _allegro_encode,
        _allegro_decode,
    ),
}


def _frame_causal_mask(
    n_frame: int, n_hw: int, dtype: torch.dtype, device: torch.device, batch_size: int | None = None
) -> Tensor:
    """HunyuanVideo-1.5's mask, a token sees its own frame and those before, without the loop over all tokens.

    The class fills the same values row by row in Python, which bakes the number of tokens into a capture.
    """
    frame = torch.arange(n_frame, device=device).repeat_interleave(n_hw)
    queries, keys = torch.meshgrid(frame, frame, indexing="ij")
    mask = torch.where(keys <= queries, 0.0, float("-inf")).to(dtype)
    return mask if batch_size is None else mask.unsqueeze(0).expand(batch_size, -1, -1)


@contextmanager
def _masks_without_loops(module: nn.Module) -> Iterator[None]:
    owners = {
        type(part)
        for part in module.modules()
        if type(part).__name__ == "HunyuanVideo15AttnBlock" and "prepare_causal_attention_mask" in vars(type(part))
    }
    before = {cls: inspect.getattr_static(cls, "prepare_causal_attention_mask") for cls in owners}
    try:
        for cls in owners:
            cls.prepare_causal_attention_mask = staticmethod(_frame_causal_mask)  # type: ignore[attr-defined]
        yield
    finally:
        for cls, method in before.items():
            cls.prepare_causal_attention_mask = method  # type: ignore[attr-defined]


def skeleton(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module's structure with empty parameters of another floating type: enough to capture it, no weight copied."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        kind = dtype if tensor.is_floating_point() else tensor.dtype
        empty = torch.empty_like(tensor, dtype=kind, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, False) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(module, memo)
