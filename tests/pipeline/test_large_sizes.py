"""Every family plans at the widths of public models and at every size: nothing in a model works at one size and not at
another, but for limits that a refusal names.

Models branch on sizes ("more than 2^31 elements are copied first"), and such a branch shows at public widths alone. A
capture on its far side may refuse what it did on its near one, or serve no other size. Plans are made of shapes alone:
all weights are one shared zero, and large sizes cost nothing.
"""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sweeping.families import PUBLIC
from torch import nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import PlanError
from tvae.pipeline.memory import limits
from tvae.pipeline.models.calls import SIDES, Side
from tvae.pipeline.models.families import FAMILIES, LatentGeometry
from tvae.pipeline.models.own_classes import class_named

SEED, SIZES = 35, 40
SMALLEST, LARGEST = 64, 20_000
"""Pixels of a height or a width."""
LONGEST = 31
"""Latent frames."""
BUDGETS = (None, None, None, 2 << 30, 16 << 30)


@dataclass(frozen=True)
class Public:
    """A public model.

    decode: extra arguments of its decode. other: the geometry of a class that is no family. sides: those that run.
    longest: latent frames of a clip.
    """

    class_name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    decode: Mapping[str, Any] = field(default_factory=dict)
    other: LatentGeometry | None = None
    sides: tuple[Side, ...] = SIDES
    longest: int = LONGEST

    @property
    def geometry(self) -> LatentGeometry:
        return self.other or FAMILIES[self.class_name].geometry(self.config)

    def build(self) -> nn.Module:
        """Build the model with one zero as all of its weights, which takes no memory."""
        with torch.device("meta"):
            model: nn.Module = class_named(self.class_name)(**self.config)  # type: ignore[misc]
        zero = torch.zeros(())
        model._apply(lambda weight: zero.to(weight.dtype).expand(weight.shape))
        return model.eval().requires_grad_(False)

    def call(self, side: Side, height: int, width: int, latent_frames: int) -> tuple[tuple[int, ...], dict[str, Any]]:
        """Return the shape of a side's input, its size in pixels rounded up, and extra arguments."""
        of, frames, extra = self.geometry, latent_frames, {} if side == "encode" else dict(self.decode)
        size = [-(-pixels // of.spatial) * (of.spatial if side == "encode" else 1) for pixels in (height, width)]
        channels = of.in_channels if side == "encode" else of.latent_channels
        if self.class_name in FAMILIES and FAMILIES[self.class_name].frames_in_batch:
            return (frames, channels, *size), extra | ({"num_frames": frames} if side == "decode" else {})
        if of.temporal is None:
            return (1, channels, *size), extra
        if side == "encode":
            lead = 0 if (frames - of.lead) % of.latent_group else of.lead
            frames = lead + (frames - lead) * of.temporal
        return (1, channels, frames, *size), extra


_ASYMMETRIC = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "down_block_out_channels": (128, 256, 512, 512),
    "layers_per_down_block": 2,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "up_block_out_channels": (192, 384, 768, 768),
    "layers_per_up_block": 3,
}
_HUNYUAN_IMAGE = {
    **{"in_channels": 3, "out_channels": 3, "latent_channels": 64, "layers_per_block": 2},
    "block_out_channels": (128, 256, 512, 512, 1024, 1024),
    **{"spatial_compression_ratio": 32, "sample_size": 384},
}
_LTX_095 = {
    "block_out_channels": (128, 256, 512, 1024, 2048),
    "down_block_types": ("LTXVideo095DownBlock3D",) * 4,
    "decoder_block_out_channels": (256, 512, 1024),
    "layers_per_block": (4, 6, 6, 2, 2),
    "decoder_layers_per_block": (5, 5, 5, 5),
    "spatio_temporal_scaling": (True,) * 4,
    "decoder_spatio_temporal_scaling": (True,) * 3,
    "decoder_inject_noise": (False,) * 4,
    "downsample_type": ("spatial", "temporal", "spatiotemporal", "spatiotemporal"),
    "upsample_residual": (True,) * 3,
    "upsample_factor": (2,) * 3,
    "timestep_conditioning": True,
    **{"spatial_compression_ratio": 32, "temporal_compression_ratio": 8},
}
MODELS = {
    **{name: Public(each.class_name, each.config) for name, each in PUBLIC.items()},
    "asymmetric": Public("AsymmetricAutoencoderKL", _ASYMMETRIC),
    "hunyuan-image": Public("AutoencoderKLHunyuanImage", _HUNYUAN_IMAGE),
    "hunyuan-refiner": Public("AutoencoderKLHunyuanImageRefiner"),
    "kvae": Public("AutoencoderKLKVAE"),
    "ltx-0.9.5": Public("AutoencoderKLLTXVideo", _LTX_095, {"temb": torch.tensor([0.05])}),
    "taef2": Public("TAESD"),
    "taesana": Public("TAESD", {"deep": True}),
    "taew2.1": Public("TAEHV"),
    "taew2.2": Public("TAEHV", {"patch_size": 2, "latent_channels": 48}),
    "taecvx": Public("TAECVX"),
    "kvae-video": Public("AutoencoderKLKVAEVideo", other=LatentGeometry(8, 4, 1, 16)),
    "qwen-2.1": Public("AutoencoderKLQwenImage21", other=LatentGeometry(16, 8, 1, 64, 4), longest=1),
    "consistency": Public("ConsistencyDecoderVAE", other=LatentGeometry(8), sides=("encode",)),
}


@dataclass(frozen=True)
class Cell:
    """height, width: pixels. vram: a budget in bytes, None for all the memory there is."""

    height: int
    width: int
    latent_frames: int = 5
    vram: int | None = None

    def __str__(self) -> str:
        budget = "" if self.vram is None else f" in {self.vram >> 30} GiB"
        return f"{self.width}x{self.height}x{self.latent_frames}{budget}"


def cells(name: str, side: Side) -> Iterator[Cell]:
    draw = random.Random(f"{SEED} {name} {side}")

    def size() -> int:
        return round(SMALLEST * (LARGEST / SMALLEST) ** draw.random())

    named = [(SMALLEST, SMALLEST), (4000, 6000), (4096, 6144), (LARGEST, LARGEST)]
    for height, width in named + [(size(), size()) for _ in range(SIZES - len(named))]:
        yield Cell(height, width, draw.randint(1, MODELS[name].longest), draw.choice(BUDGETS))


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with more memory and disk than any plan wants."""
    monkeypatch.setattr(limits, "available_bytes", lambda: 1 << 50)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=1 << 60))


@pytest.fixture(scope="module")
def table() -> Iterator[dict[str, Counter[str]]]:
    """What became of the cells, by model and side; printed at the end."""
    found: dict[str, Counter[str]] = {}
    yield found
    for title, counts in [*found.items(), ("all", sum(found.values(), Counter[str]()))]:
        said = ", ".join(f"{count} {what}" for what, count in counts.items())
        print(f"\n{title:24} {counts.total():4} cells: {said}", end="")


@cache
def tiled(name: str, vram: int | None) -> TiledVAE:
    return TiledVAE(MODELS[name].build(), "cpu", vram=vram)


def outcome(name: str, side: Side, cell: Cell) -> str:
    """Return `planned`, `too small a budget` where a larger one is named, else what was said without its numbers."""
    shape, extra = MODELS[name].call(side, cell.height, cell.width, cell.latent_frames)
    try:
        assert tiled(name, cell.vram).plan(shape, side, **extra).peak_bytes > 0
    except PlanError as error:
        if cell.vram is not None and error.enough is not None and error.enough > cell.vram:
            return "too small a budget"
        return re.sub(r"\d+(\.\d+)?", "N", f"PlanError: {error}")
    except Exception as error:
        return re.sub(r"\d+(\.\d+)?", "N", f"{type(error).__name__}: {error}")
    return "planned"


SMALL, WIDE, WIDER, LARGE = Cell(64, 64), Cell(4000, 6000), Cell(4096, 6144), Cell(LARGEST, LARGEST)
QUICK: list[tuple[str, Side, Cell]] = [
    *(("sdxl", "decode", cell) for cell in (SMALL, WIDE, WIDER, LARGE)),
    *(("flux2", "decode", cell) for cell in (WIDE, WIDER, LARGE)),
    *(("sdxl", "encode", cell) for cell in (SMALL, LARGE)),
    *(("taesd", "decode", cell) for cell in (SMALL, LARGE)),
    ("taesd", "encode", LARGE),
]


@pytest.mark.parametrize(("name", "side", "cell"), QUICK, ids=str)
def test_a_size_is_planned(name: str, side: Side, cell: Cell) -> None:
    assert outcome(name, side, cell) == "planned"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side"), [(name, side) for name, public in MODELS.items() for side in public.sides])
def test_every_size_is_planned(name: str, side: Side, table: dict[str, Counter[str]]) -> None:
    said = {cell: outcome(name, side, cell) for cell in cells(name, side)}
    tiled.cache_clear()
    table[f"{name} {side}"] = Counter(said.values())
    assert not {str(cell): why for cell, why in said.items() if why not in ("planned", "too small a budget")}


def test_every_family_is_swept() -> None:
    assert {public.class_name for public in MODELS.values()} >= {*FAMILIES}
