"""Buckets of every trainer: sides in steps, no area above the resolution's, crops inside, wide images in wide ones.

ComfyUI has none; SimpleTuner's are about as large as the resolution (``test_simpletuner.py``).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvae.pipeline.caches import TRAINERS, Architecture, Buckets, Trainer
from tvae.pipeline.caches.spec import BucketSettings, Framing
from tvae.pipeline.errors import UsageError

SIDES = st.integers(64, 4000)
APART = ("comfy", "simpletuner", "webdataset")
"""Trainers whose sizes have tests of their own."""
BUCKETED = [one for one in TRAINERS.values() if not one.one_size and one.name not in APART]


def architectures() -> Iterator[tuple[Trainer, Architecture]]:
    return ((trainer, one) for trainer in BUCKETED for one in trainer.architectures)


def framing(trainer: Trainer, size: tuple[int, int], upscale: bool = True, number: int = 0) -> Framing:
    one = trainer.architectures[number]
    return trainer.frame(size, BucketSettings(one, (768, 768), Buckets(), upscale))


@pytest.mark.parametrize("trainer", BUCKETED, ids=lambda one: one.name)
@given(width=SIDES, height=SIDES, upscale=st.booleans())
def test_sides_are_in_steps_and_the_area_is_kept(trainer: Trainer, width: int, height: int, upscale: bool) -> None:
    found = framing(trainer, (width, height), upscale)
    step = trainer.architectures[0].step
    assert found.size[0] % step == found.size[1] % step == 0
    assert 0 < found.size[0] * found.size[1] <= 768 * 768
    left, top, across, down = found.crop
    assert left >= 0
    assert top >= 0
    assert left + across <= found.resized[0]
    assert top + down <= found.resized[1]
    assert abs(left * 2 + across - found.resized[0]) <= 1
    if not upscale and width * height <= 768 * 768 and trainer.name != "ai-toolkit":  # which rounds up
        assert found.resized[0] <= width + 1
        assert found.resized[1] <= height + 1


@pytest.mark.parametrize("trainer", BUCKETED, ids=lambda one: one.name)
@given(height=st.integers(400, 2000), widths=st.tuples(st.integers(400, 2000), st.integers(400, 2000)))
def test_a_wider_image_has_no_narrower_bucket(trainer: Trainer, height: int, widths: tuple[int, int]) -> None:
    narrow, wide = (framing(trainer, (width, height)).size for width in sorted(widths))
    assert narrow[0] / narrow[1] <= wide[0] / wide[1] + 0.05


@pytest.mark.parametrize("trainer", BUCKETED, ids=lambda one: one.name)
def test_a_square_is_in_the_square_bucket(trainer: Trainer) -> None:
    assert framing(trainer, (1000, 1000)).size == (768, 768)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("on", Buckets()),
        ("off", Buckets(False)),
        ("256-2048", Buckets(True, 256, 2048)),
        ("320-1536/32", Buckets(True, 320, 1536, 32)),
    ],
)
def test_the_option_is_read(text: str, wanted: Buckets) -> None:
    assert Buckets.parse(text) == wanted


@pytest.mark.parametrize("text", ["", "yes", "512-256", "0-64", "1-2-3", "256-512/0", "a-b", "256-512/x", "٢٥٦-٥١٢"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--buckets"):
        Buckets.parse(text)


def test_sizes_that_users_know() -> None:
    kohya, sdxl = TRAINERS["kohya"], TRAINERS["kohya"].architectures[1]
    settings = BucketSettings(sdxl, (1024, 1024), Buckets(True, 256, 2048, 64), True)
    assert kohya.frame((3000, 2000), settings) == Framing((1248, 832), (16, 0, 1216, 832), "area")
    assert kohya.frame((1216, 832), settings).resized == (1216, 832)
    assert kohya.frame((300, 300), settings) == Framing((1024, 1024), (0, 0, 1024, 1024), "lanczos")


def test_kohya_s_narrowest_bucket() -> None:
    """One way to round leaves no width at all: sd-scripts goes the other."""
    kohya, sdxl = TRAINERS["kohya"], TRAINERS["kohya"].architectures[1]
    settings = BucketSettings(sdxl, (146, 146), Buckets(True, 64, 2048, 64), False)
    assert kohya.frame((863, 3626), settings) == Framing((64, 269), (0, 6, 64, 256), "area")
    with pytest.raises(ValueError, match="too long and narrow"):
        kohya.frame((100, 3626), settings)
