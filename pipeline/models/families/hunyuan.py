"""HunyuanVideo and HunyuanVideo-1.5."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tvae.pipeline.engine.capture.thread_patch import patched
from tvae.pipeline.models.families.family import CLIP, Checkpoint, Family, causal, given
from tvae.pipeline.models.layout import LDM_RULES, Kin, Layout, only

__all__ = ["FAMILIES"]


_log = logging.getLogger("tvae")


def _frame_causal_mask(
    n_frame: int, n_hw: int, dtype: torch.dtype, device: torch.device, batch_size: int | None = None
) -> Tensor:
    """HunyuanVideo's mask, a token sees its own frame and those before, without the loop over all tokens.

    The models fill the same values row by row in Python, which bakes the number of tokens into a capture.
    """
    frame = torch.arange(n_frame, device=device).repeat_interleave(n_hw)
    queries, keys = torch.meshgrid(frame, frame, indexing="ij")
    mask = torch.where(keys <= queries, 0.0, float("-inf")).to(dtype)
    return mask if batch_size is None else mask.unsqueeze(0).expand(batch_size, -1, -1)


_MAKER = "prepare_causal_attention_mask"
_PARAMETERS = ["n_frame", "n_hw", "dtype", "device", "batch_size"]


@contextmanager
def masks_without_loops(module: nn.Module) -> Iterator[None]:
    """The attention of HunyuanVideo and HunyuanVideo-1.5 with that mask, in whatever model has such blocks: diffusers'
    classes have a method that makes it; the models' own code, and what was copied from it, a function."""
    kinds = {kind for block in module.modules() for kind in type(block).__mro__}
    owners = {kind for kind in kinds if kind.__name__ == "HunyuanVideo15AttnBlock" and _MAKER in vars(kind)}
    before = {cls: inspect.getattr_static(cls, _MAKER) for cls in owners}
    files = {kind.__module__: sys.modules.get(kind.__module__) for kind in kinds}
    try:
        for cls in owners:
            setattr(cls, _MAKER, staticmethod(_frame_causal_mask))
        with ExitStack() as functions:
            for file in files.values():
                if _makes_that_mask(vars(file).get(_MAKER) if file else None):
                    functions.enter_context(patched(file, _MAKER, _frame_causal_mask))
            yield
    finally:
        for cls, method in before.items():
            setattr(cls, _MAKER, method)


def _makes_that_mask(function: Any) -> bool:
    """Is it a function that gives the same mask? It is asked for a small one."""
    if not inspect.isfunction(function) or [*inspect.signature(function).parameters] != _PARAMETERS:
        return False
    for frames, size, batch in ((3, 2, None), (2, 3, 2)):
        small = (frames, size, torch.float32, torch.device("cpu"), batch)
        try:
            made = function(*small)
        except Exception:  # whatever it is, it is no such function
            _log.debug("%s makes another mask", function.__qualname__, exc_info=True)
            return False
        if not (isinstance(made, Tensor) and torch.equal(made, _frame_causal_mask(*small))):
            return False
    return True


_RULES_15 = (
    (r"^(encoder|decoder)\.mid\.block_1\.", r"\1.mid_block.resnets.0."),
    (r"^(encoder|decoder)\.mid\.block_2\.", r"\1.mid_block.resnets.1."),
    (r"^(encoder|decoder)\.mid\.attn_1\.([qkv])\.", r"\1.mid_block.attentions.0.to_\2."),
    (r"^(encoder|decoder)\.mid\.attn_1\.", r"\1.mid_block.attentions.0."),
    (r"^encoder\.down\.(\d+)\.block\.", r"encoder.down_blocks.\1.resnets."),
    (r"^encoder\.down\.(\d+)\.downsample\.", r"encoder.down_blocks.\1.downsamplers.0."),
    (r"^decoder\.up\.(\d+)\.block\.", r"decoder.up_blocks.\1.resnets."),
    (r"^decoder\.up\.(\d+)\.upsample\.", r"decoder.up_blocks.\1.upsamplers.0."),
)

FAMILIES = [
    Family(
        "AutoencoderKLHunyuanVideo",
        "video",
        causal(given("spatial_compression_ratio", 8), given("temporal_compression_ratio", 4), 16),
        "HunyuanVideo",
        frames=CLIP,
        checkpoints={"hunyuan": Checkpoint({}, "HunyuanVideo")},
        layouts=(
            Layout("diffusers", r"(encoder\.down|decoder\.up)_blocks\.0\.resnets\.0\.conv1\.conv\.weight", only({})),
            Layout(
                "Latent Diffusion",
                r"(encoder\.down|decoder\.up)\.0\.block\.0\.conv1\.conv\.weight",
                only({}),
                LDM_RULES,
            ),
        ),
        files={"7c68a6295f9034a88225fbafb1f3258291a08d57a1fdb938233fa57b1b8f4883": "HunyuanVideo"},
    ),
    Family(
        "AutoencoderKLHunyuanVideo15",
        "video",
        causal(given("spatial_compression_ratio", 16), given("temporal_compression_ratio", 4), 32),
        "HunyuanVideo 1.5; mask built without its Python loop",
        frames=CLIP,
        patched=masks_without_loops,
        layouts=(
            Layout("diffusers", r"(encoder\.down|decoder\.up)_blocks\.0\.resnets\.0\.norm1\.gamma", only({})),
            Layout("HunyuanVideo", r"(encoder\.down|decoder\.up)\.0\.block\.0\.norm1\.gamma", only({}), _RULES_15),
        ),
        kin=(
            Kin(
                "hunyuanvideo1.5",
                "HunyuanVideo 1.5",
                {},
                files={"e7c3091949c27e2d55ae6d5df917b99dadfebbf308e5a50d0ade0d16c90297ae": "HunyuanVideo 1.5, float16"},
            ),
            Kin(
                "hunyuanimage-refiner",
                "the refiner of HunyuanImage 2.1",
                {},
                class_name="AutoencoderKLHunyuanImageRefiner",
            ),
        ),
    ),
]
