"""Against a float64 oracle: the matrices of ITU-R BT.601, BT.709 and BT.2020 from their luma coefficients."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.media import Colour, Frame, PictureSpec, WriteOptions, open_reader, open_writer, parse_colour

LUMA = {"bt709": (0.2126, 0.0722), "smpte170m": (0.299, 0.114), "bt2020nc": (0.2627, 0.0593)}
NUMBER = {"bt709": 1, "smpte170m": 6, "bt2020nc": 9}
COLOURS = [
    (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (0, 255, 255),
    (255, 255, 255), (0, 0, 0), (200, 90, 30), (30, 60, 200), (120, 180, 90),
]  # fmt: skip
PATCH = 16


def to_yuv(rgb: np.ndarray, matrix: str, value_range: str) -> np.ndarray:
    """[..., 3] R'G'B' 0..255 -> Y'CbCr, not rounded."""
    red, blue = LUMA[matrix]
    r, g, b = np.moveaxis(np.asarray(rgb, np.float64) / 255, -1, 0)
    y = red * r + (1 - red - blue) * g + blue * b
    cb, cr = (b - y) / (2 * (1 - blue)), (r - y) / (2 * (1 - red))
    scale_y, scale_c, black = (219, 224, 16) if value_range == "tv" else (255, 255, 0)
    return np.stack([black + scale_y * y, 128 + scale_c * cb, 128 + scale_c * cr], -1)


def to_rgb(yuv: np.ndarray, matrix: str, value_range: str) -> np.ndarray:
    """The inverse, clipped."""
    origin = to_yuv(np.zeros(3), matrix, value_range)
    linear = np.stack([to_yuv(255.0 * np.eye(3)[i], matrix, value_range) - origin for i in range(3)], -1) / 255
    return ((np.asarray(yuv, np.float64) - origin) @ np.linalg.inv(linear).T).clip(0, 255)


def patches() -> np.ndarray:
    """Solid squares of 16 pixels."""
    return np.repeat(np.repeat(np.array(COLOURS, np.uint8).reshape(2, 5, 3), PATCH, 0), PATCH, 1)


def centres(picture: np.ndarray) -> np.ndarray:
    return picture[PATCH // 2 :: PATCH, PATCH // 2 :: PATCH].astype(np.float64)


def clip_of(path: Path, yuv: tuple[int, int, int], size: tuple[int, int], tags: dict[str, int], codec: str) -> Path:
    """Two frames of one colour, given as stored numbers, in 4:4:4 (grey: the first number alone)."""
    width, height = size
    with av.open(str(path), "w") as output:
        stream = output.add_stream(codec, rate=25, width=width, height=height, options={"qp": "0"})
        stream.pix_fmt = {"mjpeg": "yuvj444p", "ffv1": "gray"}.get(codec, "yuv444p")
        for name, value in tags.items():
            setattr(stream.codec_context, name, value)
        for pts in range(2):
            frame = av.VideoFrame(width, height, stream.pix_fmt)
            for plane, value in zip(frame.planes, yuv, strict=False):
                plane.update(bytes([value]) * plane.buffer_size)
            frame.pts = pts
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return path


def read_centre(path: Path) -> tuple[np.ndarray, list[str]]:
    with open_reader(path) as reader:
        frames = [frame.rgb for frame in reader]
    return frames[0][frames[0].shape[0] // 2, frames[0].shape[1] // 2].astype(float), reader.warnings


@pytest.mark.parametrize("value_range", ["tv", "pc"])
@pytest.mark.parametrize("matrix", list(LUMA))
def test_written_by_the_tagged_matrix(matrix: str, value_range: str, tmp_path: Path) -> None:
    path, picture = tmp_path / "a.mp4", patches()
    like = PictureSpec(80, 32, Fraction(1, 25), Fraction(25), colour=Colour(matrix, value_range, "bt709", "bt709"))
    with open_writer(path, like, WriteOptions(crf=0)) as writer:
        writer.write(Frame(picture, 0, 1))
        writer.commit()
    with av.open(str(path)) as container:
        context = container.streams.video[0].codec_context
        frame = next(container.decode(video=0))
    tags = context.colorspace, context.color_range, context.color_primaries, context.color_trc
    assert tags == (NUMBER[matrix], 1 if value_range == "tv" else 2, 1, 1)
    planes = [np.frombuffer(p, np.uint8).reshape(-1, p.line_size)[: p.height, : p.width] for p in frame.planes]
    stored = np.stack([planes[0][8::16, 8::16], planes[1][4::8, 4::8], planes[2][4::8, 4::8]], -1)
    wanted = {name: to_yuv(centres(picture), name, value_range).clip(0, 255) for name in LUMA}
    assert np.abs(stored - wanted[matrix]).max() <= 1
    assert all(np.abs(stored - wanted[other]).max() > 5 for other in LUMA if other != matrix)
    with open_reader(path) as reader:
        rgb = next(iter(reader)).rgb
    assert np.abs(centres(rgb) - centres(picture)).max() <= 2


@pytest.mark.parametrize("value_range", ["tv", "pc"])
@pytest.mark.parametrize("matrix", list(LUMA))
def test_read_by_the_tagged_matrix(matrix: str, value_range: str, tmp_path: Path) -> None:
    yuv = (110, 90, 180)
    tags = {"colorspace": NUMBER[matrix], "color_range": 1 if value_range == "tv" else 2}
    got, warnings = read_centre(clip_of(tmp_path / "a.mp4", yuv, (64, 64), tags, "libx264"))
    assert np.abs(got - to_rgb(yuv, matrix, value_range)).max() <= 1
    assert all(np.abs(got - to_rgb(yuv, other, value_range)).max() > 3 for other in LUMA if other != matrix)
    assert [text for text in warnings if "tagged" in text] == []


@pytest.mark.parametrize(
    ("size", "matrix"), [((1280, 720), "bt709"), ((720, 1280), "bt709"), ((720, 576), "smpte170m")]
)
def test_untagged_is_read_and_written_by_its_size(size: tuple[int, int], matrix: str, tmp_path: Path) -> None:
    got, warnings = read_centre(clip_of(tmp_path / "a.mp4", (110, 90, 180), size, {}, "libx264"))
    assert np.abs(got - to_rgb((110, 90, 180), matrix, "tv")).max() <= 1
    assert f"colour not tagged; read with {matrix} matrix (by its size) and limited range" in warnings
    like = PictureSpec(*size, frame_rate=Fraction(25))
    with open_writer(tmp_path / "b.mp4", like, WriteOptions(enc={"preset": "ultrafast"})) as writer:
        writer.write(Frame(np.zeros((size[1], size[0], 3), np.uint8)))
        writer.commit()
    with open_reader(tmp_path / "b.mp4") as reader:
        assert reader.info.colour == Colour(matrix, "tv", matrix, matrix)


def test_grey_jpeg_and_unusual_colours(tmp_path: Path) -> None:
    grey = {"color_range": 1}
    assert read_centre(clip_of(tmp_path / "tv.mkv", (16, 0, 0), (64, 64), grey, "ffv1"))[0].tolist() == [0, 0, 0]
    assert read_centre(clip_of(tmp_path / "pc.mkv", (16, 0, 0), (64, 64), {}, "ffv1"))[0].tolist() == [16, 16, 16]
    jpeg, _ = read_centre(clip_of(tmp_path / "j.mov", (110, 90, 180), (1280, 720), {}, "mjpeg"))
    assert np.abs(jpeg - to_rgb((110, 90, 180), "smpte170m", "pc")).max() <= 4  # JPEG is not lossless
    hdr = {"colorspace": 9, "color_range": 1, "color_primaries": 9, "color_trc": 16}
    _, warnings = read_centre(clip_of(tmp_path / "hdr.mp4", (110, 90, 180), (64, 64), hdr, "libx264"))
    assert "HDR (PQ) values read as they are, in 8 bits" in warnings
    with pytest.raises(InputError, match=r"y\.mp4: colour matrix ycgco is not supported"):
        open_reader(clip_of(tmp_path / "y.mp4", (110, 90, 180), (64, 64), {"colorspace": 8}, "libx264"))


def test_colour_does_not_shift_against_the_pixels(tmp_path: Path) -> None:
    """4:2:0 as decoders understand it: chroma lies on the left pixel of each pair."""
    ramp = np.broadcast_to(np.arange(256, dtype=np.uint8), (64, 256))
    picture = np.ascontiguousarray(np.stack([ramp, np.full_like(ramp, 128), ramp[:, ::-1]], -1))
    like = PictureSpec(256, 64, Fraction(1, 25), Fraction(25))
    with open_writer(tmp_path / "a.mp4", like, WriteOptions(crf=0)) as writer:
        writer.write(Frame(picture, 0, 1))
        writer.commit()
    with open_reader(tmp_path / "a.mp4") as reader:
        difference = next(iter(reader)).rgb.astype(float) - picture
    assert np.abs(difference[8:-8, 8:-8].mean((0, 1))).max() < 0.15  # half a pixel would be 0.5
    assert np.abs(difference[:, 8:-8]).max() <= 2


def test_rgb_is_kept_as_rgb(tmp_path: Path) -> None:
    like = PictureSpec(80, 32, Fraction(1, 25), Fraction(25))
    with open_writer(tmp_path / "a.mp4", like, WriteOptions(codec="libx264rgb", pix_fmt="rgb24", crf=0)) as writer:
        writer.write(Frame(patches(), 0, 1))
        writer.commit()
    with open_reader(tmp_path / "a.mp4") as reader:
        assert np.array_equal(next(iter(reader)).rgb, patches())
        assert reader.info.colour == Colour("gbr", "pc", "bt709", "iec61966-2-1")
        spec = reader.info.spec
    with open_writer(tmp_path / "b.mp4", spec, WriteOptions(colour=parse_colour("bt709:pc"))) as writer:
        writer.write(Frame(patches(), 0, 1))
        writer.commit()
    with open_reader(tmp_path / "b.mp4") as reader:
        assert reader.info.colour == Colour("bt709", "pc", "bt709", "iec61966-2-1")


def test_color_flag() -> None:
    assert parse_colour("keep") is None
    assert parse_colour("BT601:tv") == Colour("smpte170m", "tv")
    assert parse_colour("bt2020") == Colour("bt2020nc")
    for wrong in ("srgb", "bt709:full", "keep:tv", ""):
        with pytest.raises(UsageError, match="unknown colour"):
            parse_colour(wrong)


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.mov", "mpeg4"),
        ("a.mp4", "mpeg4"),
        ("a.mov", "prores_ks"),
        ("a.mkv", "prores_ks"),
        ("a.webm", "libvpx"),
        ("a.mkv", "libvpx"),
        ("a.mov", "libx264"),
    ],
)
@pytest.mark.parametrize("value_range", ["tv", "pc"])
def test_what_a_file_cannot_tell_is_not_written(name: str, codec: str, value_range: str, tmp_path: Path) -> None:
    """Full range in ProRes, and in MOV's MPEG-4, and other matrices than that of BT.601 in VP8, were read as others."""
    like = PictureSpec(64, 64, Fraction(1, 25), Fraction(25), colour=Colour("bt709", value_range))
    picture = np.full((64, 64, 3), (200, 60, 40), np.uint8)
    with open_writer(tmp_path / name, like, WriteOptions(codec=codec)) as writer:
        writer.write(Frame(picture, 0, 1))
        writer.commit()
    with open_reader(tmp_path / name) as reader:
        (frame,) = reader
    assert np.abs(frame.rgb.astype(int) - picture).mean() < 4


@pytest.mark.parametrize(
    ("name", "codec", "colour"),
    [("a.mov", "mpeg4", "bt709:pc"), ("a.mkv", "prores_ks", "bt601:pc"), ("a.webm", "libvpx", "bt709")],
)
def test_asked_for_it_is_refused(name: str, codec: str, colour: str, tmp_path: Path) -> None:
    like = PictureSpec(64, 64, Fraction(1, 25), Fraction(25))
    with pytest.raises(UsageError, match="readers would take it for"):
        open_writer(tmp_path / name, like, WriteOptions(codec=codec, colour=parse_colour(colour)))
    assert list(tmp_path.iterdir()) == []
