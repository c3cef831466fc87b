"""Real clips through the whole program: frames, timestamps, sound and orientation survive.

Pictures are made small on the way in (--size), so that the suite stays quick; the full size is the same code.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

CLIPS = [
    "sam2_01_dog_720p.mp4",
    "derived_dog_720p_vfr_aac.mp4",
    "phone_1080p_vfrgap_aac.mp4",
    "decord_rot90_3frames.mov",
    "bbb_1080p_5s_aac6ch.mp4",
    "cockatoo_720p_yuv444.mp4",
    "vtest_pedestrians_768x576.avi",
]
QUICK = {"decord_rot90_3frames.mov"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in CLIPS])
def test_a_clip_comes_back(
    name: str, shared_media: Path, tvae: Callable[..., Any], demux: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    source = tmp_path / name
    shutil.copy(shared_media / "video" / name, source)
    before = demux(source)
    tvae("encode", source, "-o", tmp_path / "latents", "--size", "64x64", "--device", "cpu")
    source.unlink()  # a decode needs nothing but the latents and the VAE
    result = tmp_path / "out.mp4"
    tvae("decode", tmp_path / "latents" / f"{name}.latents", "-o", result, "--device", "cpu")
    after = demux(result)
    assert len(after["times"]) == len(before["times"])
    assert after["times"] == before["times"]
    assert [b for _, b in after["sound"]] == [b for _, b in before["sound"]]
    assert _offsets(after) == _offsets(before)
    assert (after.get("codec"), after.get("channels")) == (before.get("codec"), before.get("channels"))
    assert after["rotation"] == 0
    width, height = before["size"]
    upright = (height, width) if before["rotation"] % 180 else (width, height)
    scale = min(64 / upright[0], 64 / upright[1])
    assert after["size"] == tuple(round(n * scale) for n in upright)


def _offsets(found: dict[str, Any]) -> list[Fraction]:
    """Every packet of sound against the first picture."""
    return [time - found["times"][0] for time, _ in found["sound"]]


def test_irregular_timestamps_are_irregular(shared_media: Path, demux: Callable[[Path], dict[str, Any]]) -> None:
    """The clip that the test above holds to its times does have irregular ones."""
    times = demux(shared_media / "video" / "derived_dog_720p_vfr_aac.mp4")["times"]
    steps = {round(float(b - a), 3) for a, b in pairwise(times)}
    assert len(steps) > 2
