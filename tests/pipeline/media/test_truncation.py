from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import count_frames, open_reader
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


@pytest.mark.parametrize(
    ("suffix", "lacked"),
    [(".gif", 2), (".gif", 40), (".gif", 600), (".png", 13), (".png", 60), (".png", 900)],
)
def test_a_cut_off_animation(suffix: str, lacked: int, tmp_path: Path) -> None:
    """FFmpeg gives as many pictures as there are, the last one in part, and no error."""
    noise = np.random.default_rng(0).integers(0, 256, (3, 24, 24, 3), np.uint8)
    first, *more = [Image.fromarray(pixels) for pixels in noise]
    whole, cut = tmp_path / f"whole{suffix}", tmp_path / f"cut{suffix}"
    first.save(whole, save_all=True, append_images=more, duration=40)
    data = whole.read_bytes()
    mark = 1 if suffix == ".gif" else 12  # that ends it: nothing else is lost with it
    for content in (data, data + b"added", data[:-mark]):
        whole.write_bytes(content)
        assert count_frames(whole) == 3
    cut.write_bytes(data[:-lacked])
    with pytest.raises(InputError, match=r"is cut off, the end of the animation is missing"):
        open_reader(cut)


def animation(path: Path) -> bytes:
    noise = np.random.default_rng(1).integers(0, 256, (3, 24, 24, 3), np.uint8)
    first, *more = [Image.fromarray(pixels) for pixels in noise]
    first.save(path, save_all=True, append_images=more, duration=40)
    return path.read_bytes()


@pytest.mark.parametrize("kind", [b"acTL", b"fcTL", b"IDAT", b"fdAT"])
def test_an_animated_png_with_a_damaged_chunk(kind: bytes, tmp_path: Path) -> None:
    """FFmpeg gives other pictures, or fewer, and no error."""
    path = tmp_path / "a.png"
    data = animation(path)
    begin = data.rindex(kind)
    for at in range(begin - 1, begin + 12):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x15]) + data[at + 1 :])
        with pytest.raises(InputError, match=r"animation is damaged \(wrong checksum|is cut off|image is damaged"):
            open_reader(path).close()
    path.write_bytes(data + b"added")
    assert count_frames(path) == 3


@pytest.mark.parametrize("added", [b"\0", b"xx", b"\0" * 70_000])
def test_bytes_between_the_blocks_of_a_gif(added: bytes, tmp_path: Path) -> None:
    """FFmpeg gives what comes before them, and no error."""
    path = tmp_path / "a.gif"
    data = animation(path)
    for block in (b"!\xf9\x04", b","):
        at = data.rindex(block) if block != b"," else data.rindex(b"!\xf9\x04") + 8
        path.write_bytes(data[:at] + added + data[at:])
        with pytest.raises(InputError, match=rf"the animation is damaged \(byte {at} belongs to no block\)"):
            open_reader(path)
    path.write_bytes(data[:-1] + added + data[-1:])
    assert count_frames(path) == 3


def test_what_is_no_picture_is_not_called_large(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("hello")
    with pytest.raises(InputError, match=r"is no image that can be read, or is too large \(frames of more than 1 mega"):
        open_reader(tmp_path / "a.jpg", 1_000_000)


def test_lost_packets_are_told(make_clip: Callable[..., Path], tmp_path: Path) -> None:
    """A recording goes on after a hole in it; which frames were there is not known."""
    whole, holed = make_clip(tmp_path / "whole.ts", range(0, 60 * 512, 512)), tmp_path / "holed.ts"
    data = whole.read_bytes()
    middle = len(data) // 376 * 188
    holed.write_bytes(data[:middle] + data[middle + 5 * 188 :])
    for path, told in ((whole, False), (holed, True)):
        with open_reader(path) as reader:
            for _ in reader:
                pass
            assert any("packets are damaged or cut off; frames may be missing" in w for w in reader.warnings) is told


def test_other_files_are_left_to_the_decoder(tmp_path: Path) -> None:
    for content in (b"", b"x", b"RIFF\xff\xff\xff\xffWEBP", b"\x1a\x45\xdf\xa3", b"\0\0\0\x18ftypmp42" + bytes(99)):
        path = tmp_path / "a"
        path.write_bytes(content)
        assert missing(path) == 0
