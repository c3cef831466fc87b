"""Clips on demand: what a job fetches, hands on and writes is what it does with the whole clip at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs import ItemDone
from tvae.pipeline.jobs.on_demand import FrameRows, LatentRows
from tvae.pipeline.latents import open_latents

Run = Callable[..., Any]


def times_of(frames: int) -> tuple[int, ...]:
    """Uneven on purpose."""
    return tuple(40 * n + (n % 3) for n in range(frames))


@pytest.mark.parametrize("frames", [1, 4, 5, 9, 14, 70])
@pytest.mark.parametrize("posterior", ["mean", "moments"])
def test_latents_are_those_of_the_whole_clip(
    frames: int, posterior: str, run: Run, clip: Run, stand_in: Run, tmp_path: Path
) -> None:
    source, found = clip(times=times_of(frames)), {}
    for by_frames in (False, True):
        model = stand_in(temporal_factor=4)
        model.goes_by_frames = by_frames
        output = tmp_path / f"{by_frames}.latents"
        assert run("encode", source, output=output, model=model, posterior=posterior)[0].done == 1
        found[by_frames] = list(open_latents(output))
    for name in found[False][0].tensors:
        whole, parts = (torch.cat([part.tensors[name] for part in found[way]], 1) for way in (False, True))
        torch.testing.assert_close(parts, whole)
    pts = [time for part in found[True] for time in part.pts]
    assert pts == [time for part in found[False] for time in part.pts]
    assert [part.repeated for part in found[True]][-1] == (1 - frames) % 4
    assert len(found[True]) == -(-(1 + -(-(frames - 1) // 4)) // 16), "sixteen latent frames a part"


@pytest.mark.parametrize("frames", [1, 4, 9, 14])
def test_frames_are_those_of_the_whole_clip(
    frames: int, run: Run, clip: Run, stand_in: Run, shown: Run, tmp_path: Path
) -> None:
    whole, by_frames = stand_in(temporal_factor=4), stand_in(temporal_factor=4)
    by_frames.goes_by_frames = True
    run("encode", clip(times=times_of(frames)), output=tmp_path / "c.latents", model=whole)
    given = {}
    for name, model in (("whole", whole), ("frames", by_frames)):
        output = tmp_path / f"{name}.mkv"
        done, _ = run("decode", tmp_path / "c.latents", output=output, model=model, codec="ffv1")
        assert done.done == 1
        given[name] = shown(output)
    assert len(given["frames"]) == frames
    assert given["frames"] == given["whole"]


def test_frames_too_many_are_dropped(run: Run, clip: Run, stand_in: Run, tmp_path: Path) -> None:
    model = stand_in(temporal_factor=4)
    model.goes_by_frames = True
    source, output = clip(times=times_of(12)), tmp_path / "c.latents"
    assert run("encode", source, output=output, model=model, align="crop")[0].done == 1
    assert open_latents(output).frames == 9
    assert open_latents(output).latent_frames == 3
    assert run("encode", source, output=tmp_path / "d.latents", model=model, align="error")[0].failed == 1


def test_a_window_gives_frames_again_but_not_from_the_beginning(stand_in: Run) -> None:
    pictures = [np.full((8, 8, 3), n, np.uint8) for n in range(20)]
    rows = FrameRows(iter(pictures), 20, pictures[0], stand_in(temporal_factor=4))
    for lo, hi in ((0, 5), (3, 9), (7, 9), (8, 14), (7, 14), (12, 20)):
        levels = (rows.fetch(lo, hi).result()[0, 0, :, 0, 0] + 1) * 127.5
        assert levels.round().int().tolist() == list(range(lo, hi))
    assert len(rows._window._held) < 20
    with pytest.raises(InputError, match="ends after 20 frames"):
        rows.fetch(19, 21)


def test_latents_come_one_by_one(stand_in: Run) -> None:
    latents = [torch.full((3, 2, 2), float(n)) for n in range(6)]
    rows = LatentRows(iter(latents), 6, (2, 2), stand_in(temporal_factor=4))
    assert rows.fetch(1, 4).result()[0, 0, :, 0, 0].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("frames", [1, 4, 9, 14])
@pytest.mark.parametrize("align", ["pad", "crop"])
def test_reconstructions_are_those_of_the_whole_clip(
    frames: int, align: str, run: Run, clip: Run, stand_in: Run, shown: Run, tmp_path: Path
) -> None:
    """And neither side sees more than a few frames at a time."""
    source, given, quality = clip(times=times_of(frames)), {}, {}
    for by_frames in (False, True):
        model, output = stand_in(temporal_factor=4), tmp_path / f"{by_frames}.mkv"
        model.goes_by_frames = by_frames
        done, events = run("roundtrip", source, output=output, model=model, codec="ffv1", align=align)
        assert done.done == 1
        given[by_frames] = shown(output)
        (item,) = (event for event in events if isinstance(event, ItemDone))
        quality[by_frames] = item.frames, item.quality
        if by_frames:
            assert max(shape[2] for shape in model.shapes) <= 10
    kept = frames if align == "pad" else 1 + (frames - 1) // 4 * 4
    assert len(given[True]) == kept
    assert given[True] == given[False]
    assert quality[True] == quality[False]
