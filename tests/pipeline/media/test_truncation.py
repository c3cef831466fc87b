from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import open_reader
from tvae.pipeline.media.opened import Opened
from tvae.pipeline.media.truncation import missing_bytes


def missing(path: Path) -> int:
    with Opened(path) as opened:
        return missing_bytes(opened)


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv", ".avi"])
def test_a_cut_off_file_is_found_by_its_headers(suffix: str, make_clip: Callable[..., Path], tmp_path: Path) -> None:
    whole = make_clip(tmp_path / f"a{suffix}")
    data = whole.read_bytes()
    assert missing(whole) == 0
    cut = tmp_path / f"cut{suffix}"
    cut.write_bytes(data[: len(data) // 2])
    assert missing(cut) > 0
    with pytest.raises(InputError, match=rf"cut{suffix}: is cut off, its last \d+ bytes are missing"):
        open_reader(cut)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.97])
def test_a_cut_off_qoi_picture(share: float, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8)
    encoder = av.CodecContext.create("qoi", "w")
    assert isinstance(encoder, av.VideoCodecContext)
    encoder.width, encoder.height, encoder.pix_fmt, encoder.framerate = 90, 60, "rgb24", 1
    frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
    whole = b"".join(map(bytes, (*encoder.encode(frame), *encoder.encode())))
    for name, data in (("whole", whole), ("more", whole + b"added"), ("cut", whole[: int(share * len(whole))])):
        (tmp_path / f"{name}.qoi").write_bytes(data)
    for name in ("whole", "more"):
        with open_reader(tmp_path / f"{name}.qoi") as reader:
            assert np.array_equal(next(iter(reader)).rgb, pixels)
    with pytest.raises(InputError, match="is cut off, the end of the picture is missing"):
        open_reader(tmp_path / "cut.qoi")


def test_other_files_are_left_to_the_decoder(tmp_path: Path) -> None:
    for content in (b"", b"x", b"RIFF\xff\xff\xff\xffWEBP", b"\x1a\x45\xdf\xa3", b"\0\0\0\x18ftypmp42" + bytes(99)):
        path = tmp_path / "a"
        path.write_bytes(content)
        assert missing(path) == 0
