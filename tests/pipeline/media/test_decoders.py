"""Images read with the decoder that SimpleTuner has: which files it is asked for, what is made of its pixels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms, features
from stand_in_decoder import stand_in_decoder, turned_over, without_decoder

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import MediaInfo, open_reader
from tvae.pipeline.media.decoders import MISSING, decodes_file, pick_decoder, version
from tvae.pipeline.media.sandbox import Sandbox

LEVELS = np.random.default_rng(0).integers(0, 256, (33, 50, 3), dtype=np.uint8)
RGB = Image.fromarray(LEVELS)
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()


def exif(turn: int) -> Image.Exif:
    found = Image.Exif()
    found[0x0112] = turn
    return found


def read(path: Path, **how: Any) -> tuple[np.ndarray, MediaInfo, list[str]]:
    with open_reader(path, **how) as reader:
        (frame,) = reader
    return frame.rgb, reader.info, reader.warnings


def refusal(path: Path, **how: Any) -> str:
    with pytest.raises(InputError) as caught:
        read(path, **how)
    return str(caught.value)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_decoder(tmp_path / "site", monkeypatch)


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[bytes, int], Any]], None]:
    """Installs a package that decodes so."""

    def install(decode: Callable[[bytes, int], Any]) -> None:
        monkeypatch.setitem(sys.modules, "trainingsample", SimpleNamespace(imdecode_py=decode))

    return install


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.jpg", {}),
        ("a.jpg", {"progressive": True, "subsampling": 0}),
        ("a.tif", {}),
        ("a.tif", {"compression": "jpeg"}),
        ("a.jpg", {"icc_profile": PROFILE}),
    ],
)
def test_jpegs_and_tiffs_are_decoded_by_it(stand_in: None, tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    RGB.save(path := tmp_path / name, **options)
    rgb, info, warnings = read(path, decoder="trainingsample")
    assert np.array_equal(rgb, turned_over(path))
    assert (rgb.flags.writeable, rgb.flags.c_contiguous) == (True, True)
    assert (info.width, info.height, info.rotation, warnings) == (50, 33, 0, [])
    assert decodes_file(path)


@pytest.mark.parametrize("name", ["a.png", "a.webp", "a.bmp", "a.gif", "deep.png", "deep.tif"])
def test_others_are_not(stand_in: None, tmp_path: Path, name: str) -> None:
    image = Image.fromarray(LEVELS[..., 0].astype(np.uint16) * 250) if "deep" in name else RGB
    image.save(path := tmp_path / name)
    assert np.array_equal(read(path, decoder="trainingsample")[0], read(path)[0])
    assert decodes_file(path) == (path.suffix == ".tif")


def test_profiles_are_nothing_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    red, green = (source.index(tag, 128) for tag in (b"rXYZ", b"gXYZ"))
    swapped = bytearray(source.replace(b"s\0R\0G\0B", b"o\0d\0d\0!"))  # red and green change places
    swapped[red + 4 : red + 12], swapped[green + 4 : green + 12] = source[green + 4 : green + 12], source[red + 4 :][:8]
    RGB.save(path := tmp_path / "a.png", icc_profile=bytes(swapped))
    without_decoder(monkeypatch)
    rgb, _, warnings = read(path, decoder=pick_decoder())
    assert (np.array_equal(rgb, LEVELS), warnings) == (True, [])
    rgb, _, warnings = read(path)
    assert np.abs(rgb.astype(int) - LEVELS).max() > 100
    assert "converted from its ICC profile" in warnings[0]


@pytest.mark.parametrize("turn", range(1, 9))
def test_a_turned_photo_is_turned_once(stand_in: None, tmp_path: Path, turn: int) -> None:
    RGB.save(path := tmp_path / "a.jpg", exif=exif(turn))
    RGB.save(plain := tmp_path / "b.jpg", exif=exif(1))
    rgb, info, _ = read(path, decoder="trainingsample")
    before, told, _ = read(path)
    assert np.array_equal(rgb, 255 - before)
    assert (info.rotation, info.mirrored) == (told.rotation, told.mirrored)
    assert np.array_equal(turned_over(path), turned_over(plain))


@pytest.mark.parametrize(
    ("pixels", "wanted"),
    [
        (LEVELS[..., 0], LEVELS[..., [0, 0, 0]]),
        (LEVELS[..., :1], LEVELS[..., [0, 0, 0]]),
        (LEVELS[..., :2], LEVELS[..., [0, 0, 0]]),
        (np.dstack([LEVELS, LEVELS[..., 0]]), LEVELS),
    ],
)
def test_channels(decoding: Any, tmp_path: Path, pixels: np.ndarray, wanted: np.ndarray) -> None:
    decoding(lambda data, flag: pixels if flag == -1 else None)
    RGB.save(path := tmp_path / "a.jpg")
    assert np.array_equal(read(path, decoder="trainingsample")[0], wanted)


def test_attempts_come_in_its_order(decoding: Any, tmp_path: Path) -> None:
    RGB.save(path := tmp_path / "a.jpg")
    asked: list[int] = []

    def decode(data: bytes, flag: int) -> Any:
        assert data == path.read_bytes()
        asked.append(flag)
        return LEVELS if flag == 1 else np.zeros((33, 50, 7), np.uint8)

    decoding(decode)
    assert np.array_equal(read(path, decoder="trainingsample")[0], LEVELS)
    assert asked == [-1, 1]


@pytest.mark.parametrize("given", [None, np.zeros((33, 50, 3), np.uint16), np.zeros((2, 33, 50, 3), np.uint8)])
def test_pillow_comes_last(decoding: Any, tmp_path: Path, given: Any) -> None:
    decoding(lambda data, flag: given)
    RGB.save(path := tmp_path / "a.jpg")
    assert np.array_equal(read(path, decoder="trainingsample")[0], read(path)[0])


def test_turned_photos_that_pillow_decodes_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_decoder(tmp_path / "site", monkeypatch, fails=True)
    RGB.save(path := tmp_path / "a.jpg", exif=exif(6))
    assert "SimpleTuner turns this photo upright when it sorts" in refusal(path, decoder="trainingsample")
    RGB.save(path := tmp_path / "a.tif", tiffinfo={0x0112: 6})
    rgb, info, _ = read(path, decoder="trainingsample")
    assert np.array_equal(rgb, np.rot90(LEVELS, -1))
    assert (info.width, info.height, info.rotation) == (33, 50, 0)  # to SimpleTuner it is upright
    if features.check("avif"):
        RGB.save(path := tmp_path / "a.avif", exif=exif(6))
        assert "save it upright" in refusal(path, decoder="pillow")


class PanicException(BaseException):
    """As Rust's panics come to Python."""


def test_a_panic_costs_its_file_alone(decoding: Any, tmp_path: Path) -> None:
    def decode(data: bytes, flag: int) -> Any:
        raise PanicException("index out of bounds")

    decoding(decode)
    RGB.save(path := tmp_path / "a.jpg")
    told = refusal(path, decoder="trainingsample")
    assert "a.jpg: the image is damaged (trainingsample: index out of bounds)" in told


def test_an_interruption_is_none(decoding: Any, tmp_path: Path) -> None:
    def decode(data: bytes, flag: int) -> Any:
        raise KeyboardInterrupt

    decoding(decode)
    RGB.save(path := tmp_path / "a.jpg")
    with pytest.raises(KeyboardInterrupt):
        read(path, decoder="trainingsample")


def test_pixels_of_another_size_are_refused(decoding: Any, tmp_path: Path) -> None:
    decoding(lambda data, flag: np.zeros((33, 51, 3), np.uint8))
    RGB.save(path := tmp_path / "a.jpg")
    assert "its pixels are 51x33, and its header says otherwise" in refusal(path, decoder="trainingsample")


@pytest.mark.parametrize("sandboxed", [False, True])
def test_a_file_that_pillow_refuses_is_refused_in_its_words(tmp_path: Path, stand_in: None, sandboxed: bool) -> None:
    (tmp_path / "site" / "trainingsample.py").write_text(
        "import numpy\n\ndef imdecode_py(data, flag):\n    return numpy.zeros((33, 50, 3), numpy.uint8)\n"
    )
    RGB.save(path := tmp_path / "a.jpg", quality=100)
    whole, told = path.read_bytes(), []
    for length in (len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:length])
        with Sandbox("on" if sandboxed else "off") as there:
            for how in ({}, {"decoder": "trainingsample"}):
                with pytest.raises(InputError) as caught:
                    there.open_reader(path, **how)  # type: ignore[arg-type]
                told.append(str(caught.value))
    assert (told[0], told[2]) == (told[1], told[3])
    assert all("a.jpg: " in line and "\n" not in line for line in told)


def test_the_sandbox_decodes_so_too(tmp_path: Path, stand_in: None) -> None:
    RGB.save(path := tmp_path / "a.jpg", exif=exif(6))
    held: list[int] = []
    wanted, info, _ = read(path, decoder="trainingsample", hold=held.append)
    sys.modules.pop("trainingsample", None)
    with Sandbox("on") as there, there.open_reader(path, decoder="trainingsample", hold=held.append) as reader:
        (frame,) = reader
    assert np.array_equal(frame.rgb, wanted)
    assert reader.info == info
    assert held[0] == held[1] > wanted.nbytes
    assert "trainingsample" not in sys.modules  # it was not decoded here


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("a.jpg", {}, [MISSING]),
        ("a.tif", {"compression": "jpeg"}, [MISSING]),
        ("a.tif", {"compression": "tiff_lzw"}, []),
        ("a.png", {}, []),
    ],
)
def test_what_differs_without_it_is_told(tmp_path: Path, name: str, options: dict[str, Any], told: list[str]) -> None:
    RGB.save(path := tmp_path / name, **options)
    rgb, _, warnings = read(path, decoder="pillow")
    assert warnings == told
    assert np.array_equal(rgb, np.asarray(Image.open(path)))
    assert "trainingsample" in MISSING
    assert "\n" not in MISSING


def test_which_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_decoder(tmp_path / "site", monkeypatch, version="2.5")
    assert (pick_decoder(), version()) == ("trainingsample", "2.5")
    without_decoder(monkeypatch)
    assert (pick_decoder(), version()) == ("pillow", None)
    monkeypatch.setitem(sys.modules, "trainingsample", SimpleNamespace())  # another package of this name
    assert (pick_decoder(), version()) == ("pillow", None)


def test_one_that_cannot_be_loaded_is_none(tmp_path: Path, stand_in: None) -> None:
    (tmp_path / "site" / "trainingsample.py").write_text("raise OSError('GLIBC_2.99 not found')")
    assert (pick_decoder(), version()) == ("pillow", None)


def test_values_of_the_real_one(tmp_path: Path) -> None:
    real = pytest.importorskip("trainingsample")
    y, x = np.mgrid[:157, :203]
    waves = np.stack([127 + 90 * np.sin(x / (9 + n)) + 30 * np.cos(y / (5 + n)) for n in range(3)], 2)
    smooth = Image.fromarray(waves.clip(0, 255).astype(np.uint8))
    differences = {}
    with Sandbox("on") as there:
        for mode in ("RGB", "L", "CMYK"):
            for options in ({}, {"subsampling": 0}, {"progressive": True}, {"exif": exif(6)}, {"exif": exif(5)}):
                smooth.convert(mode).save(path := tmp_path / "a.jpg", quality=90, **options)  # type: ignore[arg-type]
                stored = real.imdecode_py(path.read_bytes(), -1)
                stored = np.repeat(stored, 3, 2) if mode == "L" else stored
                turn = options.get("exif", exif(1))[0x0112]
                wanted = {1: stored, 6: np.rot90(stored, -1), 5: stored.swapaxes(0, 1)}[turn]
                assert np.array_equal(read(path, decoder="trainingsample")[0], wanted)
                with there.open_reader(path, decoder="trainingsample", memory=1 << 26) as reader:
                    assert np.array_equal(next(iter(reader)).rgb, wanted)
                differences[mode, *options] = np.abs(read(path)[0].astype(int) - wanted).max()
    assert 0 < max(differences.values()) <= 5
    assert version() is not None
