"""Reconstructions: names, timestamps, quality."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tvae.pipeline.jobs import ItemDone

Run = Callable[..., Any]


def test_an_image_with_its_quality(run: Run, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (21, 30, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "n.webp", lossless=True)
    done, events = run("roundtrip", tmp_path / "n.webp", output=tmp_path / "out")
    made = np.asarray(Image.open(tmp_path / "out" / "n.webp.png"))
    assert made.shape == noise.shape
    error = np.mean((made.astype(float) - noise) ** 2)
    (item,) = (event for event in events if isinstance(event, ItemDone))
    assert item.quality.psnr == pytest.approx(10 * np.log10(255**2 / error))
    assert done.quality is None


@pytest.mark.parametrize("temporal_factor", [None, 4])
def test_a_clip_keeps_its_times(
    run: Run, clip: Run, shown: Run, stand_in: Run, tmp_path: Path, temporal_factor: int | None
) -> None:
    source = clip("c.avi.mkv", times=(0, 40, 90, 130, 170, 300))
    model = stand_in(temporal_factor=temporal_factor)
    _, events = run("roundtrip", source, output=tmp_path / "out", model=model)
    (item,) = (event for event in events if isinstance(event, ItemDone))
    assert item.frames == item.quality.frames == 6
    assert [time for time, _ in shown(item.output)] == [time for time, _ in shown(source)]


def test_several_items_have_a_mean(run: Run, picture: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in "ab":
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(tmp_path / f"{name}.png")
    done, events = run("roundtrip", tmp_path / "a.png", tmp_path / "b.png", output=tmp_path / "out")
    values = [event.quality.psnr for event in events if isinstance(event, ItemDone)]
    assert done.quality.psnr == pytest.approx(sum(values) / 2)


def test_a_size_is_met_before_the_vae(run: Run, picture: Run, stand_in: Run, tmp_path: Path) -> None:
    model = stand_in()
    run("roundtrip", picture(width=64, height=32), output=tmp_path / "o.png", size=(20, 20), fit="cover", model=model)
    assert model.shapes[0] == (1, 3, 24, 24)
    with Image.open(tmp_path / "o.png") as made:
        assert made.size == (20, 20)
