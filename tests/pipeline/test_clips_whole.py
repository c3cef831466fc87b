"""Clips that the reference takes in one piece: the model's own numbers at every length, from one capture."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_vaes import TINY, relative_l2, result, waves
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.models.families.mochi import without_chunks
from tvae.pipeline.models.reference import call_reference, reference_mode
from tvae.pipeline.session import new_graph

WHOLE = [
    ("AutoencoderKLMochi", "encode", (19, 7, 1, 31)),
    ("AutoencoderKLHunyuanVideo", "encode", (9, 5, 17)),
    ("AutoencoderKLHunyuanVideo", "decode", (3, 5, 4)),
    ("AutoencoderKLHunyuanVideo15", "encode", (9, 17, 13)),
    ("AutoencoderKLHunyuanVideo15", "decode", (3, 5, 4)),
    ("AutoencoderKLLTXVideo", "encode", (9, 17)),
    ("AutoencoderKLLTXVideo", "decode", (2, 4)),
    ("AutoencoderKLLTX2Video", "encode", (9, 17)),
    ("AutoencoderKLLTX2Video", "decode", (2, 4)),
    ("AutoencoderKLAllegro", "encode", (8, 12)),
    ("AutoencoderKLAllegro", "decode", (2, 4)),
    ("AutoencoderKLCosmos", "encode", (9, 17)),
    ("AutoencoderKLCosmos", "decode", (2, 4)),
]
QUICK = {("AutoencoderKLLTXVideo", "decode")}


def _made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every capture from here on."""
    made: list[int] = []
    real = new_graph.capture
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(new_graph, "capture", lambda *args: made.append(1) or real(*args))
    return made


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "side", "lengths"),
    [pytest.param(*case, marks=() if case[:2] in QUICK else pytest.mark.slow) for case in WHOLE],
)
def test_every_length_is_the_models_own(
    family: str, side: Any, lengths: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One capture serves all of these. The exporter takes a size of 1 for a constant: a single frame has a capture of
    its own, and so has a clip so short that a level of the model sees one frame of it."""
    made, tiny = _made(tmp_path, monkeypatch), TINY[family]
    model = tiny.build()
    wide = copy.deepcopy(model).double()
    tiled = TiledVAE(model, "cpu", strip=3)
    frame = tiny.input(side, 6, 5)[:, :, :1]
    for length in lengths:
        x = torch.cat([frame * (1 + 0.1 * n) for n in range(length)], 2)
        with torch.no_grad(), reference_mode(wide):
            wanted = result(call_reference(wide, side, x.double()))
        assert relative_l2(result(getattr(tiled, side)(x)), wanted) <= 1e-5, length
    assert len(made) == 1 + (1 in lengths)


def test_mochi_in_one_piece_is_mochi_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within ``without_chunks`` as outside it: twenty frames, of which the class normalises eight at a time, and 96
    pixels, over whose frames it attends seven at a time here."""
    model: Any = TINY["AutoencoderKLMochi"].build().double()
    block = next(m for m in model.modules() if type(m).__name__ == "MochiDownBlock3D")
    monkeypatch.setattr(type(block).forward, "__defaults__", (None, 7))
    attended: list[int] = []
    for attention in filter(None, block.attentions):
        attention.register_forward_pre_hook(lambda _, args: attended.append(len(args[0])))
    x = waves((2, 3, 20, 16, 24)).double()
    with torch.no_grad():
        chunks = result(model.encode(x))
        assert max(attended) == 7
        attended.clear()
        with without_chunks(model):
            norm = next(m for m in model.modules() if type(m).__name__ == "MochiChunkedGroupNorm3D")
            assert "forward" in vars(norm)
            whole = result(model.encode(x))
    assert min(attended) > 7
    assert relative_l2(whole, chunks) <= 1e-12
    assert not any("forward" in vars(m) for m in model.modules())


def test_a_norm_of_mochi_that_someone_replaced_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = TINY["AutoencoderKLMochi"].build()
    norms = [m for m in model.modules() if type(m).__name__ == "MochiChunkedGroupNorm3D"]
    norms[0].forward = lambda x: x
    with without_chunks(model):
        assert norms[0](3) == 3

    def other(self: nn.Module, x: Tensor) -> Tensor:
        return x

    monkeypatch.setattr(type(norms[0]), "forward", other)
    with without_chunks(model):
        assert not any("forward" in vars(m) for m in norms[1:])
