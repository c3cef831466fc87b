"""Pictures whose names a trainer takes for something else than they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_vaes import saved
from PIL import Image

from tvae.pipeline.caches import CacheRequest
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, ItemPlanned, Job, run_job

PIXELS = np.random.default_rng(0).integers(0, 256, (2, 48, 64, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def ltx(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return saved("ltx2", tmp_path_factory.mktemp("ltx2"))


def cached(model: Any, folder: Path, **said: Any) -> dict[str, Event]:
    """By the name of the source: how it ended."""
    ended: dict[str, Event] = {}

    def note(event: Event) -> None:
        if isinstance(event, ItemDone | ItemFailed | ItemPlanned):
            ended[event.input.name] = event

    request = CacheRequest("ltx", "ltx2")
    vae, out = str(model.folder), str(folder / "out")
    run_job(Job("cache", (str(folder / "in"),), output=out, vae=vae, size=(64, 64), cache=request, **said), note)
    return ended


@pytest.mark.long
@pytest.mark.parametrize("dry", [True, False])
def test_ltx_trainer_knows_images_by_three_suffixes(ltx: Any, tmp_path: Path, dry: bool) -> None:
    """It opens all else as a video, of which it cannot take one that has a single frame."""
    (tmp_path / "in").mkdir()
    first, second = map(Image.fromarray, PIXELS)
    fine, others = ("a.png", "b.JPG", "c.jpeg"), ("d.webp", "e.bmp", "f.tiff")
    for name in (*fine, *others):
        first.save(tmp_path / "in" / name)
    first.save(tmp_path / "in" / "g.png", save_all=True, append_images=[second])
    ended = cached(ltx, tmp_path, dry_run=dry)
    assert {name: type(event) for name, event in ended.items()} == {
        **dict.fromkeys(fine, ItemPlanned if dry else ItemDone),
        **dict.fromkeys((*others, "g.png"), ItemFailed),
    }
    told = {name: event.error for name, event in ended.items() if isinstance(event, ItemFailed)}
    assert all(".png, .jpg, .jpeg alone and stops at others" in told[name] for name in others)
    assert "an animation that is called .png for a single image" in told["g.png"]
    there = sorted(path.name for path in tmp_path.glob("out/latents/*.pt"))
    assert there == ([] if dry else ["a.pt", "b.pt", "c.pt"])
