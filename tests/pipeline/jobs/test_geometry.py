"""Resize, crop and pad, and the way back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.geometry import Align, plan_geometry, prepare, restore, told

SIDES = st.integers(1, 70)


def noise(width: int, height: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


@given(width=SIDES, height=SIDES, factor=st.sampled_from([1, 8, 16, 32]))
def test_padding_divides_and_comes_off(width: int, height: int, factor: int) -> None:
    geometry = plan_geometry((width, height), factor)
    frame = noise(width, height)
    padded = prepare(frame, geometry)
    assert padded.shape[0] % factor == padded.shape[1] % factor == 0
    assert padded.shape[0] - height < factor
    assert (padded[height:] == padded[height - 1]).all()
    assert (padded[:, width:] == padded[:, width - 1 : width]).all()
    assert (restore(padded, geometry) == frame).all()


@given(width=st.integers(16, 70), height=st.integers(16, 70))
def test_crop_keeps_the_middle(width: int, height: int) -> None:
    geometry = plan_geometry((width, height), 16, align="crop")
    kept = prepare(noise(width, height), geometry)
    assert kept.shape == (height // 16 * 16, width // 16 * 16, 3)
    left, top = (width % 16) // 2, (height % 16) // 2
    assert (kept == noise(width, height)[top : top + kept.shape[0], left : left + kept.shape[1]]).all()
    assert (restore(kept, geometry) == kept).all()


@given(width=SIDES, height=SIDES, target=st.tuples(SIDES, SIDES))
def test_fits(width: int, height: int, target: tuple[int, int]) -> None:
    for fit in ("contain", "cover", "stretch"):
        geometry = plan_geometry((width, height), 1, target, fit)
        size = geometry.size
        assert prepare(noise(width, height), geometry).shape == (size[1], size[0], 3)
        if fit == "contain":
            assert size[0] <= target[0]
            assert size[1] <= target[1]
            assert size[0] == target[0] or size[1] == target[1]
        else:
            assert size == target


def test_cover_cuts_what_sticks_out() -> None:
    geometry = plan_geometry((200, 100), 8, (50, 50), "cover")
    assert geometry.resized == (100, 50)
    assert geometry.crop == (25, 0, 50, 50)
    assert geometry.pad == (0, 0, 6, 6)


@given(width=st.integers(16, 70), height=st.integers(16, 70), factor=st.sampled_from([1, 8, 16]))
@pytest.mark.parametrize("align", ["pad", "crop"])
@pytest.mark.parametrize("size", [None, (48, 40), (39, 33)])
def test_what_alignment_does_is_told(
    width: int, height: int, factor: int, align: Align, size: tuple[int, int] | None
) -> None:
    """Against the geometry that is used; scaling and cutting by --fit are the user's own wish."""
    given = plan_geometry((width, height), 1, size, "cover").size
    taken = plan_geometry((width, height), factor, size, "cover", align).padded_size
    lines = told((width, height), factor, size, "cover", align)
    if given == taken:
        assert lines == []
        return
    (line,) = lines
    assert line.startswith("{}x{}, but this VAE takes multiples of {}: ".format(*given, factor))
    assert "{}x{}".format(*taken) in line
    assert ("cropped" in line) == (align == "crop")
    if align == "pad":
        assert ("right" in line, "bottom" in line) == (given[0] != taken[0], given[1] != taken[1])


def test_error_and_too_small_are_refused() -> None:
    with pytest.raises(InputError, match="--align pad"):
        plan_geometry((17, 16), 8, align="error")
    with pytest.raises(InputError, match="smaller"):
        plan_geometry((17, 7), 8, align="crop")
    assert plan_geometry((16, 24), 8, align="error").padded_size == (16, 24)


def test_a_frame_of_another_size_is_refused() -> None:
    with pytest.raises(InputError, match="frames change from 16x8 to 8x8"):
        prepare(noise(8, 8), plan_geometry((16, 8), 8))
