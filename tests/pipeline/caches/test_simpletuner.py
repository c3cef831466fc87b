"""Names and contents of SimpleTuner's .pt files, and sizes as its own ``TrainingSample`` gives them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cache_subjects import files_of
from hypothesis import given
from hypothesis import strategies as st

from tvae.pipeline.caches import TRAINERS, Buckets, Framing
from tvae.pipeline.caches.spec import BucketSettings
from tvae.pipeline.files.stored import write_stored

TRAINER = TRAINERS["simpletuner"]
SHAPES = {
    **dict.fromkeys(("sd1x", "sd2x", "sdxl", "kolors", "auraflow", "pixart_sigma", "omnigen"), (4, 6, 8)),
    **dict.fromkeys(("sd3", "flux", "chroma", "lumina2", "z_image", "longcat_image", "kandinsky5-image"), (16, 6, 8)),
    **dict.fromkeys(("flux2", "ernie"), (128, 6, 8)),
    **dict.fromkeys(("qwen_image", "krea2"), (16, 6, 8)),
    "anima": (16, 1, 6, 8),
    "sana": (32, 6, 8),
}


@pytest.mark.parametrize("name", SHAPES)
def test_golden(tmp_path: Path, name: str) -> None:
    ((file, stored),) = files_of("simpletuner", name).items()
    assert file == "sub/2e7336dc8eba87ef472df568c35482abf2575dc3e5eac0c5c62b8ffaeac2c934.pt"
    write_stored(tmp_path / file, stored)
    found = torch.load(tmp_path / file, weights_only=True)
    assert found.equal(torch.zeros(SHAPES[name], dtype=torch.bfloat16))
    assert (tmp_path / file).stat().st_size < 4096 + found.nbytes  # no more than the tensor


def test_every_architecture_is_here() -> None:
    assert {one.name for one in TRAINER.architectures} == SHAPES.keys()


def framing(size: tuple[int, int], step: int, resolution: int, buckets: bool = True) -> Framing:
    one = replace(TRAINER.architectures[0], step=step)
    return TRAINER.frame(size, BucketSettings(one, (resolution, resolution), Buckets(buckets), True))


@pytest.mark.parametrize(
    ("step", "resolution", "buckets", "size", "resized", "crop"),
    [
        (64, 1024, True, (1920, 1080), (1365, 768), (10, 0, 1344, 768)),
        (64, 1024, True, (1080, 1920), (768, 1365), (0, 10, 768, 1344)),
        (64, 1024, True, (1024, 1024), (1024, 1024), (0, 0, 1024, 1024)),
        (64, 1024, True, (333, 500), (852, 1280), (10, 0, 832, 1280)),
        (32, 512, True, (3000, 2000), (640, 426), (0, 5, 640, 416)),
        (16, 1024, True, (1080, 1920), (774, 1376), (3, 0, 768, 1376)),
        (64, 990, True, (1000, 1000), (1024, 1024), (0, 0, 1024, 1024)),
        (64, 990, True, (1004, 1000), (1024, 1024), (0, 0, 1024, 1024)),
        (64, 990, True, (1500, 1000), (1152, 768), (0, 0, 1152, 768)),
        (64, 1024, False, (1920, 1080), (1820, 1024), (398, 0, 1024, 1024)),
        (64, 768, False, (600, 900), (768, 1152), (0, 192, 768, 768)),
        (16, 640, True, (2000, 300), (1648, 247), (0, 3, 1648, 240)),
    ],
)
def test_sizes_of_its_own_code(
    step: int,
    resolution: int,
    buckets: bool,
    size: tuple[int, int],
    resized: tuple[int, int],
    crop: tuple[int, int, int, int],
) -> None:
    assert framing(size, step, resolution, buckets) == Framing(resized, crop, "linear")


def test_the_size_that_depends_on_the_order_of_images_is_refused() -> None:
    """Photos of 9:16 (0.56) and of 0.57 get other sizes, whose own ratios both are 0.56."""
    assert framing((1080, 1920), 16, 1024).size == (768, 1376)
    with pytest.raises(ValueError, match=r"768x1360, and .* one size, perhaps 768x1376"):
        framing((570, 1000), 16, 1024)


def test_a_size_that_it_would_fill_with_nothing_is_refused() -> None:
    """Where the square is larger than the bucket that it was scaled for."""
    with pytest.raises(ValueError, match="scaled is smaller than 1024x1024"):
        framing((1936, 591), 64, 990, False)


@given(st.integers(64, 4000), st.integers(64, 4000))
def test_buckets_are_inside_the_picture_and_near_the_area(width: int, height: int) -> None:
    try:
        found = framing((width, height), 64, 768)
    except ValueError:
        return
    left, top, across, down = found.crop
    assert across % 64 == down % 64 == 0
    assert (left, top) == ((found.resized[0] - across) // 2, (found.resized[1] - down) // 2)
    assert min(left, top) >= 0
    if 0.5 < width / height < 2:
        assert 0.85 < across * down / 768**2 < 1.15
        assert abs(found.resized[0] / found.resized[1] / (width / height) - 1) < 0.01 or across == down
