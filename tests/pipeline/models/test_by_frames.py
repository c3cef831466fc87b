"""Clips that come and go by frames: the whole clip's numbers, in memory that does not grow with it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from live_bytes import LiveBytes
from slow_but import slow_but
from tiny_vaes import TINY, relative_l2, result
from torch import Tensor, nn

from tvae.pipeline.engine.run.storage import Done
from tvae.pipeline.models.calls import Side
from tvae.pipeline.models.reference import call_reference, reference_mode
from tvae.pipeline.session.model import Model, open_model

TINY_LTX = TINY["AutoencoderKLLTXVideo"]
CPU = torch.device("cpu")
SIDES: tuple[Side, ...] = ("encode", "decode")
sides = pytest.mark.parametrize("side", SIDES)


@pytest.fixture(scope="module")
def module() -> nn.Module:
    return TINY_LTX.build()


@pytest.fixture(scope="module")
def folder(module: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ltx") / "vae"
    module.save_pretrained(path)
    return path


def opened(folder: Path, strip: int | None) -> Model:
    return open_model(str(folder), device="cpu", dtype="float32", strip=strip)


@dataclass
class Frames:
    """A clip of which a frame is made when it is asked for."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    asked: list[tuple[int, int]] = field(default_factory=list)

    def frame(self, index: int) -> Tensor:
        n, c, _, h, w = self.shape
        noise = torch.randn(n, c, h, w, generator=torch.Generator().manual_seed(index))
        return 0.5 * noise + torch.sin(torch.tensor(index / 5)) + torch.linspace(-1, 1, h)[:, None]

    def fetch(self, lo: int, hi: int) -> Done:
        self.asked.append((lo, hi))
        return Done(torch.stack([self.frame(i) for i in range(lo, hi)], 2))

    def whole(self) -> Tensor:
        return torch.stack([self.frame(i) for i in range(self.shape[2])], 2)


@dataclass
class Taken:
    """Results in the order in which they come."""

    frames: list[Tensor] = field(default_factory=list)
    count: int = 0

    def keep(self, lo: int, hi: int, rows: Tensor) -> Done:
        assert lo == self.count, "frames go out in order"
        assert rows.shape[2] == hi - lo
        self.count = hi
        self.frames.append(rows.clone())
        return Done()


class Dropped(Taken):
    """Results that nobody holds."""

    def keep(self, lo: int, hi: int, rows: Tensor) -> Done:
        self.count = hi
        return Done()


def clip(side: Side, latent_frames: int, height: int, width: int) -> Frames:
    """A clip for so many latent frames of height x width."""
    if side == "decode":
        return Frames((1, TINY_LTX.latent[0], latent_frames, height, width))
    return Frames((1, 3, 1 + 8 * (latent_frames - 1), height * TINY_LTX.scale, width * TINY_LTX.scale))


QUICK = [(1, "decode"), (5, "decode")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("frames", "side"),
    [
        pytest.param(frames, side, marks=() if (frames, side) in QUICK else pytest.mark.slow)
        for frames in (1, 2, 3, 5, 9)
        for side in SIDES
    ],
)
def test_frames_that_come_and_go_are_the_whole_clip(side: Side, frames: int, module: nn.Module, folder: Path) -> None:
    wide = copy.deepcopy(module).double()
    given = clip(side, frames, 2, 3)
    with torch.no_grad(), reference_mode(wide):
        want = result(call_reference(wide, side, given.whole().double()))
    for strip in (1, 2):
        source, taken = clip(side, frames, 2, 3), Taken()
        opened(folder, strip).run_frames(side, source, taken)
        assert relative_l2(torch.cat(taken.frames, 2), want) <= 1e-5
        assert [lo for lo, _ in source.asked] == sorted(lo for lo, _ in source.asked), "never back to the beginning"


@pytest.mark.long
@pytest.mark.parametrize("side", slow_but(["decode"], SIDES))
def test_memory_does_not_grow_with_the_clip(side: Side, folder: Path) -> None:
    """257 frames against 65, as planned and as counted in a run; buffers for the whole clip would take four times."""
    model, said, found = opened(folder, 1), [], []
    for frames in (9, 33):
        source = clip(side, frames, 2, 2)
        plan = model.plan(source.shape, side)
        said.append(plan.peak_bytes)
        model.run_frames(side, source, Dropped())  # whatever is made once for all
        with LiveBytes(model._stored.values()) as live:
            model.run_frames(side, source, Dropped())
        found.append(live.peak)
    assert said[1] <= 1.1 * said[0]
    assert found[1] <= 1.1 * found[0]
    assert found[1] <= 1.1 * said[1]
