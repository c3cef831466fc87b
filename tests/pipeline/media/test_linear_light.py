"""OpenEXR and Radiance hold linear light: it is read as sRGB. The oracle is FFmpeg's own curve, which its reader of
OpenEXR applies where it is told to."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import open_reader

SAID = "converted from linear light to sRGB; what is brighter than white is white"


def picture(path: Path, light: np.ndarray, pixels: str = "gbrpf32le", **options: str) -> Path:
    """A file of floats [H, W, 3] in linear light."""
    height, width = light.shape[:2]
    with av.open(str(path), "w", format="image2", options={"update": "1"}) as output:
        stream = output.add_stream(path.suffix[1:], rate=1, width=width, height=height, options=options)
        stream.pix_fmt = pixels
        frame = av.VideoFrame(width, height, pixels)
        for plane, values in zip(
            frame.planes, (light[..., 1], light[..., 2], light[..., 0], light[..., 0]), strict=False
        ):
            rows = np.zeros((height, plane.line_size // 4), np.float32)
            rows[:, :width] = values
            plane.update(rows.tobytes())
        output.mux([*stream.encode(frame), *stream.encode(None)])
    return path


def by_ffmpeg(path: Path) -> np.ndarray:
    """[H, W, 3] in sRGB."""
    with av.open(str(path), options={"apply_trc": "iec61966_2_1"}) as container:
        container.streams.video[0].codec_context.options = {"apply_trc": "iec61966_2_1"}
        frame = next(container.decode(video=0))
    assert frame.format.name in ("gbrpf32le", "gbrapf32le", "gbrpf16le")
    kind = np.float16 if "f16" in frame.format.name else np.float32
    planes = [np.frombuffer(frame.planes[n], kind).reshape(frame.height, -1)[:, : frame.width] for n in (2, 0, 1)]
    return np.stack(planes, -1)


@pytest.mark.parametrize("size", [(33, 47), (64, 64), (130, 5), (1, 1)], ids=str)
@pytest.mark.parametrize("pixels", ["gbrpf32le", "gbrapf32le"])
def test_read_as_srgb(pixels: str, size: tuple[int, int], tmp_path: Path) -> None:
    light = np.random.default_rng(0).random((*size, 3), dtype=np.float32) ** 3
    path = picture(tmp_path / "a.exr", light, pixels)
    with open_reader(path) as reader:
        (frame,) = reader
        assert reader.info.colour.transfer == "iec61966-2-1", "which its pixels are now"
        assert SAID in reader.warnings
    wanted = 255 * by_ffmpeg(path).astype(float)
    assert np.abs(frame.rgb - wanted).max() <= 0.51
    assert np.abs(frame.rgb - 255 * light).max() > 40 or size == (1, 1), "the curve is not the identity"


def test_radiance_says_nothing_and_is_linear_too(tmp_path: Path) -> None:
    light = np.full((16, 16, 3), 0.21404114, np.float32)
    with open_reader(picture(tmp_path / "a.hdr", light)) as reader:
        (frame,) = reader
        assert SAID in reader.warnings
    assert np.abs(frame.rgb.astype(int) - 127.5).max() <= 1.5  # Radiance keeps eight bits of each value


def test_what_no_screen_shows(tmp_path: Path) -> None:
    light = np.array([[[-1.0, 0.0, 0.0031308], [1.0, 7.0, np.inf], [-np.inf, np.nan, 0.5]]], np.float32)
    with open_reader(picture(tmp_path / "a.exr", light)) as reader:
        (frame,) = reader
    assert frame.rgb.tolist() == [[[0, 0, 10], [255, 255, 255], [0, 0, 188]]]


def test_grey(tmp_path: Path) -> None:
    light = np.random.default_rng(1).random((20, 30, 1), dtype=np.float32).repeat(3, 2)
    with open_reader(picture(tmp_path / "a.exr", light, "grayf32le")) as reader:
        (frame,) = reader
    assert (frame.rgb[..., :1] == frame.rgb).all()
    curve = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light.astype(float) ** (1 / 2.4) - 0.055)
    assert np.abs(frame.rgb - 255 * curve).max() <= 0.51


def test_halves(tmp_path: Path) -> None:
    light = np.random.default_rng(2).random((20, 30, 3), dtype=np.float32)
    path = picture(tmp_path / "a.exr", light, format="half")
    with open_reader(path) as reader:
        (frame,) = reader
        assert SAID in reader.warnings
    assert (
        np.abs(frame.rgb - 255 * by_ffmpeg(path).astype(float)).max() <= 0.51 + 255 * 2**-11
    )  # its curve ends in halves


def test_damage_is_still_told(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.exr", np.zeros((16, 16, 3), np.float32))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError), open_reader(path) as reader:
        list(reader)
