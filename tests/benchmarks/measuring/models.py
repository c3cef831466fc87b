"""The models that are measured, by their short names: in their public shapes, or tiny where a script is tried."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tiny_vaes import TINY
from torch import Tensor, nn

from tvae.pipeline.bench.shapes import SHAPES, Shape, build
from tvae.pipeline.bench.vae import VaeCase, cast, input_of, make_case
from tvae.pipeline.models.calls import Side
from tvae.pipeline.models.families import LatentGeometry

__all__ = ["Clip", "clip_of", "folder_of", "geometry_of", "module_of", "shape_of", "soft_folder_of"]

Clip = tuple[int, int, int | None]
"""Width, height, and frames of a clip."""

_TINY_SEEDVR2 = {"block_out_channels": (32,) * 4, "layers_per_block": 1, "latent_channels": 4}
"""What its weights alone can tell: the number of groups is not among it."""
_SOFT = 0.01
"""Of a last layer."""


def shape_of(name: str, tiny: bool) -> Shape:
    """``sdxl``, ``wan21`` and so on."""
    shape = SHAPES[name]
    if not tiny:
        return shape
    config = _TINY_SEEDVR2 if name == "seedvr2" else TINY[shape.class_name].config
    return replace(shape, config=config)


@cache
def module_of(name: str, tiny: bool, dtype: str, device: str) -> nn.Module:
    """The model; one at a time is kept by those that run many."""
    return cast(build(shape_of(name, tiny)), torch.device(device), getattr(torch, dtype))


@cache
def geometry_of(name: str, tiny: bool) -> LatentGeometry:
    """How its pixels and latents relate."""
    cls, config = shape_of(name, tiny).class_name, shape_of(name, tiny).config
    from tvae.pipeline.models.families import FAMILIES

    return FAMILIES[cls].geometry(config)


def folder_of(name: str, tiny: bool, dtype: str) -> Path:
    """A folder (or a file of weights alone) that commands open; made once on a machine."""
    return _saved(f"{name}-{'tiny' if tiny else 'public'}-{dtype}", lambda: module_of(name, tiny, dtype, "cpu"), name)


def soft_folder_of(name: str, tiny: bool, dtype: str) -> Path:
    """The same with a last layer that is made small: what it decodes is nearly even, and no noise."""

    def softened() -> nn.Module:
        model: Any = module_of(name, tiny, dtype, "cpu")
        with torch.no_grad():
            for parameter in model.decoder.conv_out.parameters():
                parameter.mul_(_SOFT)
        return model

    return _saved(f"{name}-{'tiny' if tiny else 'public'}-soft-{dtype}", softened, name)


def _saved(kind: str, make: Callable[[], Any], name: str) -> Path:
    root = Path(os.environ.get("MEASURING_FOLDER", tempfile.gettempdir())) / "measured-models"
    target = root / f"{kind}-{torch.__version__}"
    if not target.exists():
        root.mkdir(parents=True, exist_ok=True)
        made, model = Path(tempfile.mkdtemp(dir=root)), make()
        if name == "seedvr2":
            from safetensors.torch import save_file

            save_file({k: v.contiguous() for k, v in model.state_dict().items()}, made / "ema_vae.safetensors")
        else:
            model.save_pretrained(made)
        module_of.cache_clear()
        try:
            made.rename(target)
        except OSError:  # another process was quicker
            shutil.rmtree(made)
    return target


def clip_of(name: str, tiny: bool, side: Side, size: Clip, batch: int = 1) -> Tensor:
    """Input of a side for pictures or a clip of this size, float32 on the CPU. Frames are rounded up."""
    of = geometry_of(name, tiny)
    case: VaeCase = make_case(of, side, size[0], size[1], batch, size[2])
    return input_of(case, of)
