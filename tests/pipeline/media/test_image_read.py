import io
import struct
import zlib
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image, ImageCms

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import open_reader, probe


def read(path: Path) -> tuple[np.ndarray, list[str]]:
    with open_reader(path) as reader:
        frames = list(reader)
    assert len(frames) == 1
    assert frames[0].pts is None
    assert reader.info.kind == "image"
    assert (reader.info.height, reader.info.width) == frames[0].rgb.shape[:2]
    return frames[0].rgb, reader.warnings


def write_deep(path: Path, codec: str, pix_fmt: str, values: np.ndarray) -> Path:
    """A 16-bit image, by FFmpeg: Pillow cannot write 16-bit RGB."""
    with av.open(str(path), "w", format="image2", options={"update": "1"}) as output:
        stream = output.add_stream(codec, rate=1, width=values.shape[1], height=values.shape[0])
        stream.pix_fmt = pix_fmt
        output.mux(stream.encode(av.VideoFrame.from_ndarray(values, format=pix_fmt)))
        output.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("size", [(1, 1), (5, 3), (48, 32)])
def test_rgb_is_read_as_it_is(size: tuple[int, int], tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)
    Image.fromarray(picture).save(tmp_path / "photo.mp4", format="PNG")  # told by content, not by suffix
    got, warnings = read(tmp_path / "photo.mp4")
    assert np.array_equal(got, picture)
    assert warnings == []


@pytest.mark.parametrize(
    ("mode", "suffix", "pix_fmt", "alpha"),
    [
        ("1", ".png", "monob", False),
        ("L", ".jpg", "gray", False),
        ("LA", ".png", "ya8", True),
        ("P", ".gif", "pal8", False),
        ("RGBA", ".png", "rgba", True),
        ("CMYK", ".jpg", "cmyk", False),
        ("RGB", ".bmp", "rgb24", False),
    ],
)
def test_modes(mode: str, suffix: str, pix_fmt: str, alpha: bool, quarters: np.ndarray, tmp_path: Path) -> None:
    source = Image.fromarray(quarters).convert(mode)
    options = {".jpg": {"quality": 100}}.get(suffix, {})
    source.save(tmp_path / f"a{suffix}", **options)
    got, warnings = read(tmp_path / f"a{suffix}")
    expected = np.asarray(source.convert("RGB"))
    assert np.abs(got[4:12, 4:12].astype(int) - expected[4:12, 4:12]).max() <= 2
    assert warnings == (["transparency dropped"] if alpha else [])
    assert (probe(tmp_path / f"a{suffix}").pix_fmt, probe(tmp_path / f"a{suffix}").has_alpha) == (pix_fmt, alpha)


def test_colour_under_transparency_is_kept(tmp_path: Path) -> None:
    rgba = np.full((4, 4, 4), (200, 100, 50, 0), np.uint8)
    Image.fromarray(rgba).save(tmp_path / "a.png")
    assert read(tmp_path / "a.png")[0][0, 0].tolist() == [200, 100, 50]
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 200, 100, 50])
    palette.save(tmp_path / "p.png", transparency=bytes([255, 0]))
    got, warnings = read(tmp_path / "p.png")
    assert got[0, 0].tolist() == [200, 100, 50]
    assert warnings == ["transparency dropped"]


@pytest.mark.parametrize(
    ("codec", "pix_fmt", "channels"),
    [
        ("png", "rgb48be", 3),
        ("png", "gray16be", 1),
        ("png", "rgba64be", 4),
        ("tiff", "rgb48le", 3),
        ("tiff", "gray16le", 1),
    ],
)
def test_sixteen_bits_are_rounded_not_cut(codec: str, pix_fmt: str, channels: int, tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (6, 10, channels)).astype(np.uint16)
    path = write_deep(tmp_path / f"a.{codec}", codec, pix_fmt, values if channels > 1 else values[..., 0])
    got, warnings = read(path)
    expected = np.rint(values.astype(np.float64) / 257)
    assert np.array_equal(got, np.broadcast_to(expected[..., :3], got.shape))
    assert warnings == ["16-bit values read as 8-bit"] + ["transparency dropped"] * (channels == 4)


def test_formats_that_only_ffmpeg_reads_are_images_too(quarters: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "a.ppm").write_bytes(b"P6 48 32 255\n" + quarters.tobytes())
    Image.fromarray(quarters).save(tmp_path / "a.tga")
    for name in ("a.ppm", "a.tga"):
        assert np.array_equal(read(tmp_path / name)[0], quarters)


def test_icc_profiles_are_converted_to_srgb(tmp_path: Path) -> None:
    picture = Image.new("RGB", (8, 8), (90, 160, 40))
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB"))
    picture.save(tmp_path / "srgb.png", icc_profile=srgb.tobytes())
    assert read(tmp_path / "srgb.png")[0][0, 0].tolist() == [90, 160, 40]
    picture.save(tmp_path / "wrong.png", icc_profile=lab.tobytes())  # not a profile for RGB
    got, warnings = read(tmp_path / "wrong.png")
    assert got[0, 0].tolist() == [90, 160, 40]
    assert warnings[0].startswith("ICC profile cannot be used")
    # swap red and green: rename the two colorant tags, so that the expected answer is known without a colour engine
    swapped = srgb.tobytes().replace(b"rXYZ", b"#XYZ").replace(b"gXYZ", b"rXYZ").replace(b"#XYZ", b"gXYZ")
    swapped = swapped.replace(b"s\0R\0G\0B", b"s\0w\0a\0p").replace(b"sRGB built-in", b"swap built-in")
    for name, kind in (
        ("rgb.png", picture),
        ("palette.png", picture.quantize(4)),
        ("alpha.png", picture.convert("RGBA")),
    ):
        kind.save(tmp_path / name, icc_profile=swapped)
        got, warnings = read(tmp_path / name)
        assert np.abs(got[0, 0].astype(int) - (160, 90, 40)).max() <= 1, name
        assert any(said.startswith("converted from its ICC profile") for said in warnings), name


def linear_grey() -> bytes:
    """A profile of grey whose levels are proportional to light."""
    white = b"XYZ \0\0\0\0" + struct.pack(">3i", 63190, 65536, 54061)
    curve = b"curv" + bytes(8)
    text = b"desc\0\0\0\0" + struct.pack(">I", 12) + b"linear grey\0" + bytes(78)
    tags, data, at = [], b"", 128 + 4 + 3 * 12
    for name, value in ((b"wtpt", white), (b"kTRC", curve), (b"desc", text)):
        tags.append(name + struct.pack(">2I", at + len(data), len(value)))
        data += value + bytes(-len(value) % 4)
    size = struct.pack(">I", at + len(data))
    date = struct.pack(">6H", 2026, 1, 1, 0, 0, 0)
    begin = size + bytes(4) + b"\2\x10\0\0" + b"mntrGRAYXYZ " + date + b"acsp" + bytes(28)
    head = begin + struct.pack(">3i", 63190, 65536, 54061)
    return head + bytes(128 - len(head)) + struct.pack(">I", len(tags)) + b"".join(tags) + data


@pytest.mark.parametrize("mode", ["L", "LA", "1"])
def test_profiles_of_grey(mode: str, tmp_path: Path) -> None:
    """Half of the light is level 188 of sRGB."""
    level = 255 if mode == "1" else 128
    Image.new("L", (8, 8), level).convert(mode).save(tmp_path / "a.png", icc_profile=linear_grey())
    got, warnings = read(tmp_path / "a.png")
    assert np.abs(got.astype(int) - (255 if mode == "1" else 188)).max() <= 1
    assert any(said.startswith("converted from its ICC profile") for said in warnings)


def test_animations_are_videos(quarters: np.ndarray, tmp_path: Path) -> None:
    pictures = [Image.fromarray(np.roll(quarters, shift, 1)) for shift in (0, 8, 16)]
    for name in ("a.gif", "a.png"):
        pictures[0].save(tmp_path / name, save_all=True, append_images=pictures[1:], duration=40)
        with open_reader(tmp_path / name) as reader:
            assert reader.info.kind == "video"
            starts = [float(frame.pts * reader.info.time_base) for frame in reader if frame.pts is not None]
        assert starts == pytest.approx([0, 0.04, 0.08])
    pictures[0].save(tmp_path / "a.tif", save_all=True, append_images=pictures[1:])
    got, warnings = read(tmp_path / "a.tif")
    assert np.array_equal(got, quarters)
    assert warnings == ["holds several pictures; the first one was read"]


def test_description(quarters: np.ndarray, tmp_path: Path) -> None:
    Image.fromarray(quarters).save(tmp_path / "a.png")
    info = probe(tmp_path / "a.png")
    assert (info.time_base, info.frame_rate, info.duration, info.frames, info.streams) == (None, None, None, 1, ())
    assert (info.sample_aspect_ratio, info.bits, info.container) == (Fraction(1), 8, "png")
    assert info.to_json()["sample_aspect_ratio"] == "1/1"


def test_damaged_images(quarters: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for suffix in ("png", "jpeg", "tiff", "webp"):
        stream = io.BytesIO()
        noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
        Image.fromarray(noise).save(stream, format=suffix)
        path = tmp_path / f"a.{suffix}"
        path.write_bytes(stream.getvalue()[: len(stream.getvalue()) // 2])
        with pytest.raises(InputError, match=rf"a\.{suffix}: .*(damaged|cannot be read)") as caught:
            open_reader(path)
        assert "\n" not in str(caught.value)
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(InputError, match="32-bit numbers are not supported"):
        open_reader(tmp_path / "float.tif")
    Image.fromarray(quarters).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 48 * 32 // 2 - 1)
    assert np.array_equal(read(tmp_path / "bomb.png")[0], quarters)  # Pillow's limit is not ours
    assert Image.MAX_IMAGE_PIXELS == 48 * 32 // 2 - 1  # and stays what it was
    message = r"bomb.png: has 48x32 pixels, more than the limit of 0.001535 megapixels; .* --max-megapixels$"
    for look in (open_reader, probe):
        with pytest.raises(InputError, match=message):
            look(tmp_path / "bomb.png", 48 * 32 - 1)
        look(tmp_path / "bomb.png", 48 * 32)


def test_a_header_that_claims_any_size_is_refused_before_anything_is_decoded(tmp_path: Path) -> None:
    """A few bytes that say 60000 x 60000."""
    ihdr = b"IHDR" + struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    chunks = (ihdr, b"IDAT" + zlib.compress(bytes(100)), b"IEND")
    png = b"".join(struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks)
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + png)
    with pytest.raises(InputError, match=r"has 60000x60000 pixels, more than the limit of 1073\.74 megapixels"):
        open_reader(tmp_path / "a.png")


def test_the_thumbnail_of_a_camera_raw_is_not_taken_for_the_photo(quarters: np.ndarray, tmp_path: Path) -> None:
    Image.fromarray(quarters).save(tmp_path / "a.nef", format="TIFF", tiffinfo={254: 1})
    with pytest.raises(InputError, match="camera's raw file"):
        open_reader(tmp_path / "a.nef")


def test_heif_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100))
    with pytest.raises(InputError, match="HEIF photo, which is not supported; convert"):
        open_reader(tmp_path / "a.heic")
