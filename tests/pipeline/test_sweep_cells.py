"""The cells of a sweep: what is drawn, whether models can do it, and what it costs."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from script import script_of
from sweeping import check
from sweeping.cells import LARGE, Cell, cells_of
from sweeping.families import PUBLIC, build, swept
from sweeping.inputs import input_of, latents_of, options_of

CPU = torch.device("cpu")
CELL = Cell(1, 0, 0, "random", "taesd", "decode", 96, 64, None, 1, "float32", None, False, False, 1)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The command."""
    return script_of("sweep")


def drawn(seed: int, count: int, script: ModuleType) -> list[Cell]:
    """Of public shapes."""
    return [*itertools.islice(cells_of(seed, [*PUBLIC.values()], script.PUBLIC), count)]


def test_one_seed_is_one_list(script: ModuleType) -> None:
    cells = drawn(1, 120, script)
    assert drawn(1, 120, script) == cells
    assert drawn(1, 60, script) == cells[:60]
    assert drawn(2, 60, script) != cells[:60]
    assert [cell.index for cell in cells] == [*range(120)]


def test_models_can_represent_their_cells(script: ModuleType) -> None:
    for cell in drawn(5, 600, script):
        of = PUBLIC[cell.family]
        geometry = of.geometry
        assert cell.height % geometry.spatial == cell.width % geometry.spatial == 0
        assert min(cell.height, cell.width) >= 2 * geometry.spatial
        assert (cell.frames is None) == (geometry.temporal is None)
        assert cell.frames is None or (cell.frames - geometry.lead) % (geometry.temporal or 1) == 0
        assert cell.dtype in of.types
        assert of.cost(cell.side).work * cell.pixels / 1e6 <= 1.3**2 * script.PUBLIC.huge


def test_weak_spots_are_visited(script: ModuleType) -> None:
    """By a list as long as the one that is promised: each in some cells, none in most."""
    cells = drawn(1, 200, script) + drawn(2, 200, script)
    spots = {
        "short clips of 1280x720": [c for c in cells if c.frames and c.width == 1280 and c.frames <= 17],
        "clips in a budget": [c for c in cells if c.frames and c.budget],
        "one frame": [c for c in cells if c.frames == 1],
        "maps of 2^31 elements": [
            c for c in cells if PUBLIC[c.family].widest(c.side, c.pixels, c.frames) >= LARGE and c.pixels > 1 << 22
        ],
        "very flat or very high": [c for c in cells if not 1 / 8 < c.height / c.width < 8],
        "odd numbers of latents": [c for c in cells if c.height // PUBLIC[c.family].geometry.spatial % 2],
        "the smallest budget": [c for c in cells if c.budget == "least*1.000"],
        "plain budgets": [c for c in cells if c.budget and c.budget.endswith("GiB")],
        "several samples": [c for c in cells if c.batch > 1],
        "plans before calls": [c for c in cells if c.plan_first],
        "new objects": [c for c in cells if c.fresh],
    }
    assert {name: len(found) > 2 for name, found in spots.items()} == dict.fromkeys(spots, True)
    assert {cell.family for cell in cells} == set(PUBLIC)
    assert {cell.order for cell in cells} == {"sizes", "lengths", "sides", "repeats", "random"}
    assert 0.4 < sum(cell.budget is None for cell in cells) / len(cells) < 0.6
    assert Counter(cell.dtype for cell in cells).most_common(1)[0][0] == "bfloat16"


def test_orders_are_what_they_are_called(script: ModuleType) -> None:
    for _, group in itertools.groupby(drawn(3, 600, script), key=lambda cell: cell.group):
        cells = [*group]
        shapes = [(c.side, c.height, c.width, c.frames, c.batch) for c in cells]
        assert 5 <= len(cells) <= 9
        assert len({cell.family for cell in cells}) == len({cell.order for cell in cells}) == 1
        if cells[0].order == "repeats":
            assert len(set(shapes)) <= 2
            assert shapes[0] == shapes[1]
        if cells[0].order == "lengths":
            assert len({shape[:3] for shape in shapes}) == 1
            assert [c.frames for c in cells[::2]] == [cells[0].frames] * len(cells[::2])
            assert (cells[1].frames or 0) <= (cells[0].frames or 0)
        if cells[0].order == "sides":
            assert [c.side for c in cells[:2]] == ["encode", "decode"]
            assert shapes[0][1:] == shapes[1][1:]


@pytest.mark.parametrize("name", ["svd", "cosmos", "vq"])
def test_models_are_made_where_they_are_to_be(name: str) -> None:
    """All of them: some parameters are made on the CPU, whatever the default device."""
    model = build(PUBLIC[name], torch.device("meta"))
    assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"meta"}


@pytest.mark.parametrize("name", ["sdxl", "vq", "wan22", "svd"])
def test_inputs_fit_their_models(name: str) -> None:
    of = swept(True)[name]
    model = build(of, CPU)
    frames = None if of.geometry.temporal is None else of.lengths[1]
    for side in ("encode", "decode"):
        cell = replace(CELL, family=name, side=side, frames=frames, height=32, width=48)
        x = input_of(cell, of, model, CPU)
        with torch.no_grad():
            out = check.tensor_of(getattr(model, side)(x, **options_of(cell, of)))
        if side == "decode":
            assert out.shape[-2:] == (32, 48)
            assert out.ndim == 4 or out.shape[2] == frames
        else:
            batch, *rest = latents_of(cell, of)
            assert (out.shape[0], *out.shape[2:]) == (batch, *rest)
        assert torch.equal(x, input_of(cell, of, model, CPU))
        assert not torch.equal(x, input_of(replace(cell, index=1), of, model, CPU))


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLIC)
def test_costs_are_what_models_cost(name: str) -> None:
    """Operations counted on shapes alone."""
    from torch.utils.flop_counter import FlopCounterMode

    from tvae.pipeline.models.calls import SIDES
    from tvae.pipeline.models.reference import call_reference, reference_mode

    of = PUBLIC[name]
    model = build(of, torch.device("meta"))
    frames = None if of.geometry.temporal is None else of.geometry.lead + 4 * of.geometry.temporal
    for side in SIDES:
        cell = replace(CELL, family=name, side=side, frames=frames, height=512, width=512)
        batch, *rest = latents_of(cell, of)
        channels = of.geometry.in_channels if side == "encode" else of.geometry.latent_channels
        space = (*rest[:-2], *((512, 512) if side == "encode" else rest[-2:]))
        if side == "encode" and len(rest) == 3:
            space = (cell.frames, 512, 512)
        x = torch.empty(batch, channels, *space, device="meta")
        with torch.no_grad(), reference_mode(model), FlopCounterMode(display=False) as counted:
            call_reference(model, side, x, **options_of(cell, of))
        work = counted.get_total_flops() / 1e12 / (cell.pixels / 1e6)
        assert work == pytest.approx(of.cost(side).work, rel=0.15)
