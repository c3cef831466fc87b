"""JPEGs one after the other are a clip where the name says so: all of them are read."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import open_reader


def jpeg(grey: int, width: int = 64, comment: int = 0) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (width, 48), (grey,) * 3).save(data, "jpeg", quality=100, comment=b"." * comment)
    return data.getvalue()


@pytest.mark.parametrize("comment", [0, 50000])
@pytest.mark.parametrize("count", [2, 23])
def test_all_frames_are_read(count: int, comment: int, tmp_path: Path) -> None:
    (tmp_path / "a.mjpeg").write_bytes(b"".join(jpeg(10 * n, comment=comment) for n in range(count)))
    with open_reader(tmp_path / "a.mjpeg") as reader:
        assert reader.info.kind == "video"
        means = [float(frame.rgb.mean()) for frame in reader]
    assert np.allclose(means, [10 * n for n in range(count)], atol=2)


@pytest.mark.parametrize(("name", "count"), [("a.mjpeg", 1), ("a.jpg", 2)])
def test_one_picture_is_one(name: str, count: int, tmp_path: Path) -> None:
    """What follows in a photo is its preview."""
    (tmp_path / name).write_bytes(b"".join(jpeg(n) for n in range(count)))
    with open_reader(tmp_path / name) as reader:
        assert reader.info.kind == "image"


def test_frames_of_two_sizes(tmp_path: Path) -> None:
    (tmp_path / "a.mjpeg").write_bytes(jpeg(1) * 3 + jpeg(1, 96) * 3)
    with pytest.raises(InputError, match="changes size mid-way"), open_reader(tmp_path / "a.mjpeg") as reader:
        for _ in reader:
            pass
