from collections.abc import Callable
from pathlib import Path

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


def test_other_files_are_left_to_the_decoder(tmp_path: Path) -> None:
    for content in (b"", b"x", b"RIFF\xff\xff\xff\xffWEBP", b"\x1a\x45\xdf\xa3", b"\0\0\0\x18ftypmp42" + bytes(99)):
        path = tmp_path / "a"
        path.write_bytes(content)
        assert missing(path) == 0
