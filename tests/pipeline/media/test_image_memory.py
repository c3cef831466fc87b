"""What a picture is expected to take while it is read, beside what reading it takes in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image, ImageFile

WIDTH, HEIGHT = 1200, 900
SLACK = 5 << 20  # of FFmpeg, and of the bands that are converted together
READ = """
import json, re, sys
from tvae.pipeline.media import open_reader
decoder = sys.argv.pop(1) or None
def resident(name):
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
def peak(path, alpha, told):
    with open_reader(path, hold=told.append, alpha=alpha, decoder=decoder) as reader:
        return resident("VmHWM")
for path in sys.argv[1:]:
    for alpha in (False, True):
        peak(sys.argv[1], alpha, [])
        open("/proc/self/clear_refs", "w").write("5")
        before, told = resident("VmRSS"), []
        print(json.dumps([path, alpha, peak(path, alpha, told) - before, sum(told)]))
"""


def noise(channels: int, kind: type = np.uint8) -> np.ndarray:
    values = np.random.default_rng(0).integers(0, np.iinfo(kind).max + 1, (HEIGHT, WIDTH, channels))
    return values.astype(kind)


def exif(turn: int) -> Image.Exif:
    found = Image.Exif()
    found[0x0112] = turn
    return found


def deep(form: str, pix_fmt: str) -> Callable[[Path], None]:
    """Writes 16 bits of red, green, blue and alpha."""

    def write(path: Path) -> None:
        frame = av.VideoFrame.from_ndarray(noise(4, np.uint16), format=pix_fmt)
        encoder = av.CodecContext.create(form, "w")
        assert isinstance(encoder, av.VideoCodecContext)
        encoder.width, encoder.height, encoder.pix_fmt, encoder.framerate = WIDTH, HEIGHT, pix_fmt, 1
        if form == "tiff":
            encoder.options = {"compression_algo": "lzw"}
        path.write_bytes(b"".join(map(bytes, (*encoder.encode(frame), *encoder.encode()))))

    return write


def lossless(path: Path) -> None:
    Image.fromarray(noise(4)).save(path, lossless=True, method=0, exif=exif(6))


def four_colours(path: Path) -> None:
    image = Image.frombytes("CMYK", (WIDTH, HEIGHT), noise(4).tobytes())
    image.save(path, quality=100, progressive=True)


def one_strip(path: Path) -> None:
    Image.fromarray(noise(4)).save(path, compression="tiff_lzw", tiffinfo={278: HEIGHT})


WRITERS: dict[str, Callable[[Path], None]] = {
    "deep.png": deep("png", "rgba64be"),
    "deep.tiff": deep("tiff", "rgba64le"),
    "turned.webp": lossless,
    "turned.png": lambda path: Image.fromarray(noise(4)).save(path, exif=exif(3), compress_level=1),
    "progressive.jpg": four_colours,
    "strip.tiff": one_strip,
}


@pytest.mark.long
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="reads Linux's own account of peak memory")
@pytest.mark.parametrize("decoder", ["", "trainingsample"])
def test_no_picture_takes_more_than_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoder: str) -> None:
    if decoder:
        pytest.importorskip(decoder)
    monkeypatch.setattr(ImageFile, "MAXBLOCK", 1 << 26)
    Image.new("RGB", (8, 8)).save(tmp_path / "small.jpg")
    for name, write in WRITERS.items():
        write(tmp_path / name)
    # what is freed is given back at once
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    paths = [str(tmp_path / name) for name in ("small.jpg", *WRITERS)]
    answer = subprocess.run(
        [sys.executable, "-c", READ, decoder, *paths], capture_output=True, text=True, check=True, env=environment
    )
    found = [json.loads(line) for line in answer.stdout.splitlines()][2:]
    assert len(found) == 2 * len(WRITERS)
    assert [one for one in found if one[2] > one[3] + SLACK] == []
    assert [one for one in found if one[3] > 2 * one[2]] == []  # nor is far more asked for than they take
