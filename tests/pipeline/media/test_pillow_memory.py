"""Pixels copied from Pillow's own memory are those that Pillow gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, features

from tvae.pipeline.media import image_pixels
from tvae.pipeline.media.image_pixels import in_bands
from tvae.pipeline.media.pillow_memory import rgb_of

HAS_ARROW = hasattr(Image.Image, "__arrow_c_array__")
MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "PA", "La", "RGBa")


def drawn(width: int, height: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@given(width=st.integers(1, 300), height=st.integers(1, 300), seed=st.integers(0, 9))
def test_the_pixels_are_pillows(width: int, height: int, seed: int) -> None:
    rgb = drawn(width, height, seed)
    found = rgb_of(Image.fromarray(rgb))
    assert (found is not None) == HAS_ARROW
    if found is not None:
        np.testing.assert_array_equal(found, rgb)
        assert found.flags.writeable
        assert found.flags.c_contiguous


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_what_it_gave(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = Image.fromarray(drawn(37, 23, 1))
    try:
        picture = picture.convert("RGBA" if mode == "RGBa" else "LA" if mode == "La" else "RGB").convert(mode)
    except ValueError:
        pytest.skip("Pillow converts no picture to it")
    if mode != "RGB":
        assert rgb_of(picture) is None
    outcomes = []
    for plain in (False, True):
        if plain:
            monkeypatch.setattr(image_pixels, "rgb_of", lambda _: None)
        try:
            outcomes.append(in_bands(picture).tobytes())
        except ValueError as error:
            outcomes.append(str(error).encode())
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    ("size", "crop"), [((4096, 2500), None), ((5000, 100), None), ((300, 200), (7, 9, 251, 180)), ((1, 1), None)]
)
def test_large_pictures_and_parts(size: tuple[int, int], crop: Any) -> None:
    """Of more than 16 MB Pillow has several blocks. A part is a picture of its own."""
    rgb = drawn(*size, 2)
    picture = Image.fromarray(rgb)
    if crop is not None:
        picture, rgb = picture.crop(crop), rgb[crop[1] : crop[3], crop[0] : crop[2]]
    np.testing.assert_array_equal(in_bands(picture), rgb)


def test_a_colour_that_stands_for_none_is_dropped_as_before(tmp_path: Path) -> None:
    rgb = drawn(8, 8, 3)
    path = tmp_path / "a.png"
    Image.fromarray(rgb).save(path, transparency=tuple(int(v) for v in rgb[0, 0]))
    with Image.open(path) as picture:
        picture.load()
        np.testing.assert_array_equal(in_bands(picture), rgb)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "TIFF", "WEBP", "PPM"])
def test_files(form: str, tmp_path: Path) -> None:
    if form == "WEBP" and not features.check("webp"):
        pytest.skip("this Pillow has no WebP")
    path = tmp_path / "a"
    Image.fromarray(drawn(61, 43, 4)).save(path, form)
    with Image.open(path) as picture:
        picture.load()
        np.testing.assert_array_equal(in_bands(picture), np.asarray(picture.convert("RGB")))


@pytest.mark.skipif(not HAS_ARROW, reason="Pillow from 11.2")
def test_the_memory_goes_with_the_picture() -> None:
    """What is copied stays when Pillow's memory has gone, and nothing is kept of it."""
    made: list[np.ndarray] = []
    for seed in range(200):
        found = rgb_of(Image.fromarray(drawn(64, 64, seed)))
        assert found is not None
        made.append(found)
    for seed, found in enumerate(made):
        np.testing.assert_array_equal(found, drawn(64, 64, seed))


def other(*_: Any) -> Callable[..., Any]:
    raise ValueError("its blocks are several")


def test_a_picture_that_is_not_given_goes_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "__arrow_c_array__", other, raising=False)
    rgb = drawn(20, 10, 5)
    assert rgb_of(Image.fromarray(rgb)) is None
    np.testing.assert_array_equal(in_bands(Image.fromarray(rgb)), rgb)
