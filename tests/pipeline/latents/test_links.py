"""A link in place of a folder of latents, or of its successor: what it points to is neither written nor emptied."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvae.pipeline.errors import TvaeError
from tvae.pipeline.latents import LatentsMeta, VideoLatentsWriter

NAMES = ("000000.safetensors", "diary.txt", "index.json", "streams.mp4")


@pytest.mark.parametrize("place", ["clip.latents", "clip.latents/.tvae-new"])
def test_latents_of_others(place: str, clip_meta: LatentsMeta, tmp_path: Path) -> None:
    others, folder = tmp_path / "others", tmp_path / "clip.latents"
    others.mkdir()
    for name in NAMES:
        (others / name).write_text(name)
    if place != folder.name:
        folder.mkdir()
        (folder / "index.json").touch()
    try:
        (tmp_path / place).symlink_to(others, target_is_directory=True)
    except OSError:
        pytest.skip("no links can be made here")
    with pytest.raises(TvaeError, match="is a link"):
        VideoLatentsWriter(folder, clip_meta, overwrite=True)
    assert {path.name: path.read_text() for path in others.iterdir()} == {name: name for name in NAMES}
