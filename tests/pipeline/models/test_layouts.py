"""Channels stay innermost through a whole model, so that fused operations never see another layout."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_vaes import TINY
from told_kernels import telling
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tvae.kernels import Kernels
from tvae.kernels.layout import as_pixels
from tvae.pipeline.session.model import open_model

SEEN = {"group_stats", "norm_act", "add_stats", "rms_norm_act", "pad"}
LTX, MOCHI, WAN, COG = (f"AutoencoderKL{name}" for name in ("LTXVideo", "Mochi", "Wan", "CogVideoX"))
CASES = [
    *((LTX, strip) for strip in (2, 40)),
    *(pytest.param(family, strip, marks=pytest.mark.slow) for family in (MOCHI, WAN) for strip in (2, 40)),
    pytest.param(COG, 40, marks=pytest.mark.slow),  # PyTorch's norm on a CPU gives bands of rows another layout
]


class AsOnCuda(TorchDispatchMode):
    """Convolutions with weights that have channels innermost give such results, whatever their input: cuDNN's do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.convolution.default and found.ndim in (4, 5):
            layout = torch.channels_last if found.ndim == 4 else torch.channels_last_3d
            if args[1].is_contiguous(memory_format=layout):
                return found.contiguous(memory_format=layout)
        return found


@pytest.mark.parametrize(("family", "strip"), CASES)
@pytest.mark.long
def test_fused_operations_find_channels_innermost(
    family: str, strip: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In strips and whole; pixel shuffles, frames in the batch, caches and padding in time included."""
    tiny, seen, other = TINY[family], Counter[str](), list[Any]()
    module: Any = tiny.build()
    module.save_pretrained(tmp_path)

    def note(operation: str, *args: Any) -> None:
        if operation in SEEN:
            maps = [x for x in args[: 2 if operation == "add_stats" else 1] if isinstance(x, Tensor)]
            seen[operation] += 1
            other.extend((operation, x.shape, x.stride()) for x in maps if as_pixels(x) is None and x.shape[1] > 4)

    monkeypatch.setattr(Kernels, "_chain", telling(note))
    model = open_model(str(tmp_path), device="cpu", dtype="float32", strip=strip)
    assert model.preset.memory_layout == "channels_last"
    z = torch.randn(1, model.info.latent_channels, 3, 6, 8, generator=torch.Generator().manual_seed(0))
    stream = model.stream("decode")
    with AsOnCuda():
        if stream is None:
            model.decode(z)
        else:
            for chunk in z.split([*stream.cuts.sizes(3)], 2):
                stream.step(chunk)
    assert seen["rms_norm_act"] + seen["norm_act"] > 4
    assert not other
