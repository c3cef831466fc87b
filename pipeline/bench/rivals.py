"""The ways to run one side of one VAE that are compared: ours, and what diffusers and PyTorch offer."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.calls import Side
from tvae.pipeline.models.reference import call_reference, reference_mode
from tvae.pipeline.session import graph_cache as graph_store
from tvae.pipeline.tiled_vae import TiledVAE

__all__ = ["RIVALS", "opened", "tensor_of"]

RIVALS = {
    "diffusers": "the model's own call on the whole input",
    "channels-last": "the same with weights and input channels-last",
    "tiled": "diffusers' blended tiling",
    "compile": "torch.compile of the model's own call",
    "tvae": "ours",
}
"""Name -> what it is, in the order of measuring."""

Run = Callable[[Tensor], Any]


@contextmanager
def opened(
    name: str, model: nn.Module, side: Side, preset: str, strip: int | None, *, fresh: bool = True
) -> Iterator[Run]:
    """A function of the input: nothing of an earlier case is compiled, captured or kept.

    fresh: ``tvae`` finds no graph of an earlier process either, so that its first call captures. Raises UsageError
    for a rival that this model does not have.
    """
    if name == "tvae":
        with _empty_graph_store() if fresh else nullcontext():
            tiled = TiledVAE(model, preset, strip=strip)
            yield getattr(tiled, side)
    elif name == "tiled":
        if not hasattr(model, "enable_tiling"):
            raise UsageError(f"'{type(model).__name__}' has no blended tiling (enable_tiling): leave this rival out")
        tileable: Any = model
        tileable.enable_tiling()
        try:
            yield getattr(model, side)
        finally:
            tileable.disable_tiling()
    elif name == "channels-last":
        turned = channels_last(model)
        with reference_mode(turned):
            yield lambda x: call_reference(turned, side, _last(x))
    elif name == "compile":
        torch._dynamo.reset()  # or a second shape would be compiled for any shape, and slower
        with reference_mode(model):
            yield torch.compile(getattr(model, side))
    else:
        with reference_mode(model):
            yield lambda x: call_reference(model, side, x)


def tensor_of(output: Any) -> Tensor:
    """What a side's output is about: moments of the posterior, latents, or pixels."""
    first = output[0]
    found: Tensor = first if isinstance(first, Tensor) else first.parameters
    return found


def channels_last(model: nn.Module) -> nn.Module:
    """A copy whose convolutions have their channels innermost."""
    turned = copy.deepcopy(model)
    with torch.no_grad():
        for weight in turned.parameters():
            weight.data = _last(weight.data)
    return turned


def _last(x: Tensor) -> Tensor:
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.ndim, torch.contiguous_format)
    return x.contiguous(memory_format=layout)


@contextmanager
def _empty_graph_store() -> Iterator[None]:
    """Captured graphs go to a folder of their own, which is removed."""
    before = graph_store._folder
    with tempfile.TemporaryDirectory(prefix="tvae-bench-") as folder:
        graph_store._folder = lambda: Path(folder)
        try:
            yield
        finally:
            graph_store._folder = before
