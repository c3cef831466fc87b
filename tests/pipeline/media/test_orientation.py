import io
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image, ImageOps

from tvae.pipeline.media import open_reader
from tvae.pipeline.media.orientation import from_display_matrix


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_display_matrix(
    degrees: int, mirrored: bool, quarters: np.ndarray, make_clip: Callable[..., Path], tmp_path: Path
) -> None:
    clip = make_clip(tmp_path / "a.mp4", pix_fmt="yuv444p", rotation=(degrees, mirrored), pts=(0, 512))
    # PyAV turns counter-clockwise and mirrors after that; so does numpy
    expected = np.rot90(quarters, degrees // 90)
    expected = expected[:, ::-1] if mirrored else expected
    with open_reader(clip) as reader:
        frame = next(iter(reader)).rgb
        info = reader.info
    assert frame.shape == expected.shape == (info.height, info.width, 3)
    assert np.abs(frame.astype(int) - expected).max() <= 2
    assert info.mirrored is mirrored
    assert info.rotation == (degrees if mirrored else -degrees) % 360


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", [".png", ".tif", ".webp", ".jpg"])
def test_exif(orientation: int, suffix: str, quarters: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {".jpg": {"quality": 100, "subsampling": 0}, ".webp": {"lossless": True}}.get(suffix, {})
    Image.fromarray(quarters).save(path, exif=exif, **options)
    with Image.open(path) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    with open_reader(path) as reader:
        frame = next(iter(reader)).rgb
        info = reader.info
    assert np.array_equal(frame, expected)
    assert (info.height, info.width) == expected.shape[:2]
    assert info.rotation == {3: 180, 4: 180, 5: 270, 6: 90, 7: 90, 8: 270}.get(orientation, 0)
    assert info.mirrored == (orientation in (2, 4, 5, 7))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("mode", ["L", "CMYK", "RGBA", "P"])
def test_an_uncompressed_tiff(orientation: int, mode: str, quarters: np.ndarray, tmp_path: Path) -> None:
    """Pillow maps those of these modes, and where they are turned so that their sides change it took other rows."""
    Image.fromarray(quarters).convert(mode).save(tmp_path / "a.tif", tiffinfo={0x0112: orientation})
    Image.fromarray(quarters).convert(mode).convert("RGB").save(tmp_path / "b.tif", tiffinfo={0x0112: orientation})
    with open_reader(tmp_path / "a.tif") as reader, open_reader(tmp_path / "b.tif") as other:
        assert np.array_equal(next(iter(reader)).rgb, next(iter(other)).rgb)
    assert (reader.info.width, reader.info.height) == ((32, 48) if orientation > 4 else (48, 32))


def test_a_film_of_photos_with_exif(quarters: np.ndarray, tmp_path: Path) -> None:
    """FFmpeg hands EXIF over as side data of a kind that PyAV 18 does not know and stumbles over."""
    exif, photo = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    Image.fromarray(quarters).save(photo, "JPEG", quality=95, subsampling=0, exif=exif)
    with av.open(str(tmp_path / "a.mov"), "w") as output:
        stream = output.add_mux_stream("mjpeg", rate=25, width=48, height=32)
        stream.time_base = Fraction(1, 25)
        for pts in range(2):
            packet = av.Packet(photo.getvalue())
            packet.stream, packet.time_base = stream, Fraction(1, 25)
            packet.pts = packet.dts = pts
            output.mux(packet)
    with open_reader(tmp_path / "a.mov") as reader:
        frames = list(reader)
    assert (len(frames), reader.info.rotation) == (2, 90)
    assert np.abs(frames[1].rgb[4:20, 4:12].astype(int) - np.rot90(quarters, -1)[4:20, 4:12]).max() <= 8


def test_odd_angles_are_not_guessed() -> None:
    tilted = np.array([46341, 46341, 0, -46341, 46341, 0, 0, 0, 1 << 30], np.int32)
    assert from_display_matrix(tilted.tobytes()) is None
    assert from_display_matrix(np.zeros(9, np.int32).tobytes()) is None
