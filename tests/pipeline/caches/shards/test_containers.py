"""Buckets of shards: sides, areas, proportions."""

from __future__ import annotations

import pytest

from tvae.pipeline.caches import Buckets, CacheRequest, trainer_named
from tvae.pipeline.caches.spec import Size, Wish
from tvae.pipeline.errors import UsageError

TRAINER = trainer_named("webdataset")


def frame(size: Size, resolution: Size = (1024, 1024), **fields: object) -> tuple[Size, tuple[int, int, int, int]]:
    wish = Wish(TRAINER.architectures[0], resolution, Buckets(**fields), True)  # type: ignore[arg-type]
    found = TRAINER.frame(size, wish)
    return found.resized, found.crop


def test_every_image_covers_a_bucket_of_its_proportions() -> None:
    for size in [(1024, 1024), (3000, 2000), (640, 480), (100, 900), (5000, 400), (1920, 1080), (64, 64)]:
        resized, (left, top, width, height) = frame(size)
        assert width % 64 == height % 64 == 0
        assert 512 <= min(width, height) <= max(width, height) <= 2048
        assert width * height <= 1024 * 1024
        assert width == resized[0] or height == resized[1]
        assert abs(resized[0] / resized[1] / (size[0] / size[1]) - 1) < 0.01
        assert (left, top) == ((resized[0] - width) // 2, (resized[1] - height) // 2)
        if 0.5 < size[0] / size[1] < 2:
            assert width * height > 0.85 * 1024 * 1024
            assert width * height > 0.9 * resized[0] * resized[1]


@pytest.mark.parametrize(
    ("size", "fields", "wanted"),
    [
        ((400, 300), {"on": False}, ((85, 64), (10, 0, 64, 64))),
        ((64, 64), {"smallest": 32, "largest": 128, "step": 32}, ((64, 64), (0, 0, 64, 64))),
        ((400, 100), {"smallest": 32, "largest": 128, "step": 32}, ((128, 32), (0, 0, 128, 32))),
    ],
)
def test_frames(size: Size, fields: dict[str, int], wanted: object) -> None:
    assert frame(size, (64, 64), **fields) == wanted


def test_an_area_without_a_bucket() -> None:
    with pytest.raises(ValueError, match="an area of 64x64 has no bucket"):
        frame((100, 100), (64, 64), smallest=128, largest=256)


def test_sizes_of_shards() -> None:
    with pytest.raises(UsageError, match="'big' is not an amount"):
        CacheRequest("webdataset", shards="big")
