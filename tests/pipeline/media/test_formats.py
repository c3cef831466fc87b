"""The table of formats against Pillow and FFmpeg, and that nothing else in tvae knows a suffix."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.format import ContainerFormat
from PIL import Image

from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.media import WriteOptions, check_write_options, open_reader, probe
from tvae.pipeline.media.formats import (
    DEFAULT_SUFFIXES,
    ENCODERS,
    FORMATS,
    MATROSKA,
    WRITTEN_SUFFIXES,
    ImageFormat,
    VideoFormat,
    kinds_of,
    listed,
    written_as,
)
from tvae.pipeline.media.image_read import is_image
from tvae.pipeline.media.opened import Opened

ROOT = Path(__file__).resolve().parents[3]
IMAGES = [one for one in FORMATS if isinstance(one, ImageFormat)]
VIDEOS = [one for one in FORMATS if isinstance(one, VideoFormat)]
SUFFIXES = [suffix for one in FORMATS for suffix in one.suffixes]
FLOATS = {".exr", ".hdr"}
"""Written here by FFmpeg; Pillow cannot."""
UNWRITTEN = {".jxl", ".heic"}
"""Nothing here can write a sample."""
ELSEWHERE = {
    ("pipeline/bench/plot.py", ".png"),
    *(("pipeline/caches/trainers/ltx.py", suffix) for suffix in (".png", ".jpg", ".jpeg")),
}
"""A chart is matplotlib's; what ltx-trainer takes for an image is its own list."""


def sample(path: Path, pictures: int = 1) -> Path:
    """A file of the format that the suffix names, by Pillow or FFmpeg alone."""
    levels = np.random.default_rng(0).integers(0, 256, (2, 32, 48, 3), dtype=np.uint8)
    if path.suffix in FLOATS:
        with av.open(str(path), "w", format="image2", options={"update": "1"}) as output:
            stream = output.add_stream(path.suffix[1:], rate=1, width=48, height=32)
            stream.pix_fmt = "gbrpf32le"  # type: ignore[union-attr]
            frame = av.VideoFrame.from_ndarray((levels[0] / 255).astype(np.float32), format="gbrpf32le")
            output.mux([*stream.encode(frame), *stream.encode(None)])  # type: ignore[union-attr]
        return path
    first, second = (Image.fromarray(one) for one in levels)
    first.save(path, **({"save_all": True, "append_images": [second], "duration": 100} if pictures > 1 else {}))
    return path


def test_every_suffix_stands_once() -> None:
    assert [suffix for suffix, count in Counter(SUFFIXES).items() if count > 1] == []
    for one in FORMATS:
        assert all(suffix.startswith(".") and suffix == suffix.lower() for suffix in one.suffixes)
        assert {*one.written} <= {*one.suffixes}
    for image in IMAGES:
        assert {*image.video_suffixes} <= {*image.suffixes}
    assert all(listed(suffix) and listed(suffix.upper()) for suffix in SUFFIXES)
    assert not listed(".txt")
    assert {kind: suffix in WRITTEN_SUFFIXES[kind] for kind, suffix in DEFAULT_SUFFIXES.items()} == {
        "image": True,
        "video": True,
    }


def test_what_a_suffix_promises() -> None:
    assert kinds_of(".JPG") == kinds_of(".png") == {"image"}
    assert kinds_of(".mp4") == {"video"}
    assert kinds_of(".gif") == kinds_of(".apng") == kinds_of(".xyz") == {"image", "video"}
    assert written_as(".jfif") is written_as(".apng") is written_as(".xyz") is written_as("") is None
    assert (written_as(".TIF") or FORMATS[0]).name == "TIFF"


@pytest.mark.parametrize("one", [one for one in IMAGES if one.suffixes[0] not in UNWRITTEN], ids=lambda one: one.name)
def test_who_reads_an_image(one: ImageFormat, tmp_path: Path) -> None:
    info = probe(sample(tmp_path / f"a{one.suffixes[0]}"))
    assert info.kind == "image"
    assert (info.container == one.name.lower()) == (one.reader == "Pillow")
    with Opened(info.path) as opened:
        assert is_image(opened) == (one.reader == "Pillow")


@pytest.mark.parametrize("one", [one for one in IMAGES if one.reader is None], ids=lambda one: one.name)
def test_what_is_refused(one: ImageFormat, tmp_path: Path) -> None:
    assert one.brands
    for brand in one.brands:
        path = tmp_path / f"a{one.suffixes[0]}"
        path.write_bytes(b"\0\0\0\x18ftyp" + brand + bytes(100))
        with Opened(path) as opened, pytest.raises(InputError, match=f"is a {one.name} photo"):
            is_image(opened)


@pytest.mark.parametrize("suffix", [".png", ".apng", ".gif", ".webp", ".avif", ".tiff"])
def test_what_several_pictures_are(suffix: str, tmp_path: Path) -> None:
    (one,) = (one for one in IMAGES if suffix in one.suffixes)
    with open_reader(sample(tmp_path / f"a{suffix}", pictures=2)) as reader:
        frames = list(reader)
    assert reader.info.kind == ("video" if one.several == "video" else "image")
    assert len(frames) == (2 if one.several == "video" else 1)
    assert ("holds several pictures; the first one was read" in reader.warnings) == (one.several == "first")


def test_previews_are_not_told(tmp_path: Path) -> None:
    preview = Image.new("RGB", (8, 8))
    Image.new("RGB", (16, 16)).save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=[preview])
    with open_reader(tmp_path / "a.jpg") as reader:
        assert [frame.rgb.shape for frame in reader] == [(16, 16, 3)]
    assert reader.warnings == []


@pytest.mark.parametrize("one", [one for one in IMAGES if one.reader == "Pillow"], ids=lambda one: one.name)
def test_deep_images_have_a_function_that_tells_so(one: ImageFormat, tmp_path: Path) -> None:
    assert probe(sample(tmp_path / f"a{one.suffixes[0]}")).bits == 8
    if one.bits > 8:
        Image.fromarray(np.full((4, 4), 300, np.uint16)).save(tmp_path / f"deep{one.suffixes[0]}")
        assert probe(tmp_path / f"deep{one.suffixes[0]}").bits == one.bits == 16


@pytest.mark.parametrize("one", [one for one in IMAGES if one.written], ids=lambda one: one.name)
def test_pillow_takes_the_settings(one: ImageFormat, tmp_path: Path) -> None:
    assert one.name in Image.SAVE
    for end in (0, 1):
        settings = {key: limits[end] for key, limits in one.settings.items()}
        Image.new("RGB", (8, 8)).save(tmp_path / "a", format=one.name, **{**one.defaults, **settings})
        check_write_options(one.written[0], WriteOptions(enc={key: str(value) for key, value in settings.items()}))


@pytest.mark.parametrize("one", [one for one in VIDEOS if one.written], ids=lambda one: one.name)
def test_ffmpeg_writes_the_videos(one: VideoFormat) -> None:
    assert ContainerFormat(one.name, "w").is_output
    for suffix in one.written:
        check_write_options(suffix, WriteOptions())


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_have_the_option_for_quality(name: str) -> None:
    facts = ENCODERS[name]
    assert facts.quality is None or facts.bits_per_pixel is None
    try:
        check_write_options(MATROSKA.suffixes[0], WriteOptions(codec=name))  # an option that is not there is refused
    except UsageError as error:
        if "no video encoder named" not in str(error) and not name.endswith("_nvenc"):
            raise
        pytest.skip("not in this build of FFmpeg, or without its hardware")


def literals() -> Iterator[tuple[str, str]]:
    """Every word of a text in the sources that is a suffix of a format, but for docstrings: (file, suffix)."""
    for folder in ("cli", "kernels", "pipeline"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
                    words = node.value.replace("'", " ").split()
                    yield from ((path.relative_to(ROOT).as_posix(), word) for word in words if word in SUFFIXES)


@pytest.mark.long
def test_no_suffix_stands_anywhere_else() -> None:
    found = {*literals()}
    assert ("pipeline/media/formats.py", DEFAULT_SUFFIXES["image"]) in found
    assert {one for one in found if one[0] != "pipeline/media/formats.py"} == ELSEWHERE


def test_the_usual_clock_of_mp4_is_kept() -> None:
    """What ``iso`` promises of time bases: Matroska counts milliseconds, MP4 what it is told."""
    from io import BytesIO

    for one in VIDEOS:
        if one.written:
            container = av.open(BytesIO(), "w", format=one.name)
            stream = container.add_stream("libvpx-vp9" if one.name == "webm" else "mpeg4", rate=25)
            stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"  # type: ignore[union-attr]
            stream.time_base = Fraction(1, 44100)
            container.start_encoding()
            assert (stream.time_base == Fraction(1, 44100)) == one.iso


READ_AT_FIRST = """
import sys
import tvae.pipeline.media.image_read as image_read
from PIL import Image
there, sought = {*Image.OPEN}, {*image_read.PILLOW_READS}
assert "PIL.PdfImagePlugin" not in sys.modules
Image.init()
assert sought & {*Image.OPEN} <= there, sought - there
"""


def test_pillows_other_formats_are_not_loaded() -> None:
    """Forty modules, which every command would wait for; all that are read are there."""
    subprocess.run([sys.executable, "-c", READ_AT_FIRST], check=True)
