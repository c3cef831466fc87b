"""Pictures that would take more memory than there is are refused before they are decoded."""

import io
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import open_reader

SIDE = 12000
READ = """
import resource, sys
from tvae.pipeline.errors import InputError
from tvae.pipeline.media import open_reader
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    with open_reader(sys.argv[1], memory=64 << 20) as reader:
        print("read", sum(1 for _ in reader))
except InputError as error:
    print("refused:", str(error).removeprefix(sys.argv[1]))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def animation(side: int) -> bytes:
    """A GIF of two frames of one pixel on a large canvas."""
    frame = b"\x21\xf9\x04\0\x0a\0\0\0\x2c" + struct.pack("<HHHH", 0, 0, 1, 1) + b"\0\x02\x02\x44\x01\0"
    head = b"GIF89a" + struct.pack("<HH", side, side) + b"\x80\0\0" + b"\0\0\0\xff\xff\xff"
    return head + 2 * frame + b";"


def claiming(side: int) -> bytes:
    """A JPEG of 8x8 pixels whose header says that it has so many."""
    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "jpeg")
    found = data.getvalue()
    at = found.index(b"\xff\xc0") + 5
    return found[:at] + struct.pack(">HH", side, side) + found[at + 4 :]


@pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are told in other units elsewhere")
@pytest.mark.parametrize("name", ["a.jpg", "a.mjpeg"])
def test_a_jpeg_that_claims_to_be_large(name: str, tmp_path: Path) -> None:
    """Three of them are a video."""
    (path := tmp_path / name).write_bytes(claiming(32000) * (3 if name == "a.mjpeg" else 1))
    answer = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    told, peak = answer.stdout.splitlines()
    assert told.startswith("refused:"), told
    assert int(peak) < 64
    assert answer.stderr == ""


@pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are told in other units elsewhere")
@pytest.mark.parametrize("name", ["a.png", "a.gif"])
def test_a_large_picture_is_refused_before_it_takes_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    Image.new("1", (SIDE, SIDE)).save(path) if name == "a.png" else path.write_bytes(animation(SIDE))
    answer = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    told, peak = answer.stdout.splitlines()
    assert told.startswith("refused:"), told
    assert (f"{SIDE}x{SIDE} pixels" if name == "a.png" else "they do not fit into memory") in told
    assert int(peak) < 64
    assert answer.stderr == ""


def test_a_picture_that_fits_is_read(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 200, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    needed = 200 * 300 * 10
    with open_reader(tmp_path / "a.png", memory=needed) as reader:
        assert (next(iter(reader)).rgb == pixels).all()
    with pytest.raises(InputError, match="reading 200x300 pixels takes 0 MiB, and 0 MiB are free"):
        open_reader(tmp_path / "a.png", memory=needed - 1)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_bands_are_the_whole(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels are converted in bands; Pillow, converting all at once, is the oracle."""
    monkeypatch.setattr("tvae.pipeline.media.image_pixels._BAND", 100)
    numbers = np.random.default_rng(0).integers(0, 65536, (37, 50)).astype(np.uint16)
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    if mode == "I;16":
        Image.fromarray(numbers).save(path)
        expected = np.repeat(((numbers.astype(int) + 128) // 257)[..., None], 3, 2)
    else:
        noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (37, 50, 4)).astype(np.uint8), "RGBA")
        (noise if mode in ("LA", "RGBA") else noise.convert("RGB")).convert(mode).save(path)
        with Image.open(path) as image:
            expected = np.asarray((image.convert("RGBA") if mode in ("LA", "RGBA") else image).convert("RGB"))
    with open_reader(path) as reader:
        assert (next(iter(reader)).rgb == expected).all()
