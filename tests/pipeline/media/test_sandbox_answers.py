"""What comes out of the process that decodes is checked like a file."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import sandbox_process
from tvae.pipeline.media.sandbox import Sandbox
from tvae.pipeline.media.sandbox_messages import receive, send

LIAR = """
import os, sys, json
def send(answer):
    data = json.dumps(answer).encode()
    os.write(1, len(data).to_bytes(4, "big") + data)
send({"ready": True})
os.read(0, 1 << 16)
"""
INFO = {
    "kind": "image", "width": 4, "height": 2, "rotation": 0, "mirrored": False, "sample_aspect_ratio": "1/1",
    "pix_fmt": "rgb24", "bits": 8, "has_alpha": False, "colour": {}, "container": "png", "codec": "png",
}  # fmt: skip


PIXELS = "os.write(1, bytes(24))\nos.read(0, 1 << 16)\n"


@pytest.mark.parametrize(
    "answers",
    [
        [{"image": INFO | {"width": 1 << 20, "height": 1 << 20}, "warnings": []}],
        [{"image": INFO | {"width": -4}, "warnings": []}],
        [{"image": INFO | {"kind": "video"}, "warnings": []}],
        [{"image": INFO | {"bits": "8"}, "warnings": []}],
        [{"image": [], "warnings": []}],
        [{"image": INFO, "channels": 3, "warnings": []}],  # and no pixels
        [{"image": INFO, "channels": 4, "warnings": []}, PIXELS],  # which were not asked for
        [{"image": INFO, "warnings": []}, PIXELS],
        [{"held": 1 << 60}],
        [{"held": -1}],
        [{"held": "much"}],
        ["text"],
    ],
)
def test_answers_are_not_trusted(answers: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = LIAR + "".join(one if one == PIXELS else f"send({one!r})\n" for one in answers)
    monkeypatch.setattr(sandbox_process, "COMMAND", (sys.executable, "-c", script))
    Image.new("RGB", (4, 2)).save(tmp_path / "a.png")
    with Sandbox("on") as there, pytest.raises(InputError, match=r"a\.png: its decoder"):
        there.open_reader(tmp_path / "a.png", memory=1 << 30)


@pytest.mark.parametrize("channels", [1, 5, -4, 4.0, True, "4", None])
def test_channels_that_cannot_be(channels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = LIAR + f"send({ {'image': INFO, 'channels': channels, 'warnings': []}!r})\n{PIXELS}"
    monkeypatch.setattr(sandbox_process, "COMMAND", (sys.executable, "-c", script))
    Image.new("RGB", (4, 2)).save(tmp_path / "a.png")
    with (
        Sandbox("on") as there,
        pytest.raises(InputError, match=r"a wrong answer \(pixels of a wrong kind"),
    ):
        there.open_reader(tmp_path / "a.png", memory=1 << 30, alpha=True)


VIDEO = INFO | {"kind": "video", "time_base": "1/25"}
OPENED = {"video": VIDEO, "warnings": []}


@pytest.mark.parametrize("answer", [{"video": VIDEO | {"time_base": None}}, {"video": VIDEO | {"width": 1 << 15}}, {}])
def test_a_video_that_cannot_be(answer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = LIAR + f"send({answer | {'warnings': []}!r})\n"
    monkeypatch.setattr(sandbox_process, "COMMAND", (sys.executable, "-c", script))
    (path := tmp_path / "a.mp4").write_bytes(b"x")
    with Sandbox("on") as there, pytest.raises(InputError, match=r"a\.mp4: its decoder gave a wrong answer"):
        there.open_reader(path, memory=1 << 20)


@pytest.mark.parametrize(
    "answers",
    [
        [{"frame": [0, 1]}],  # and no pixels
        [{"frame": [0]}, PIXELS],
        [{"frame": [None, 1]}, PIXELS],
        [{"frame": [1 << 63, 1]}, PIXELS],
        [{"frame": [0, 1.5]}, PIXELS],
        [{"frame": [5, 1]}, PIXELS, {"frame": [5, 1]}, PIXELS],
        [{"frame": [5, 1]}, PIXELS, {"frame": [4, 1]}, PIXELS],
        [{"frame": [0, 1], "warnings": "many"}, PIXELS],
        [{"other": 1}],
        ["text"],
    ],
)
def test_frames_are_not_trusted(answers: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "".join(answer if answer == PIXELS else f"send({answer!r})\n" for answer in answers)
    script = LIAR + f"send({OPENED!r})\nos.read(0, 1 << 16)\n" + said
    monkeypatch.setattr(sandbox_process, "COMMAND", (sys.executable, "-c", script))
    (path := tmp_path / "a.mp4").write_bytes(b"x")
    with Sandbox("on") as there, there.open_reader(path) as reader:
        with pytest.raises(InputError, match=r"a\.mp4: its decoder"):
            list(reader)
        assert there._all == set()


@pytest.mark.parametrize("count", [{"count": "3"}, {"count": None}, {"end": True}])
def test_a_count_is_a_number(count: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = LIAR + f"send({OPENED!r})\nos.read(0, 1 << 16)\nsend({{'counting': 1}})\nsend({count!r})\nos.read(0, 9)\n"
    monkeypatch.setattr(sandbox_process, "COMMAND", (sys.executable, "-c", script))
    (path := tmp_path / "a.mp4").write_bytes(b"x")
    with Sandbox("on") as there, there.open_reader(path) as reader, pytest.raises(InputError, match="its decoder"):
        reader.count()


def test_messages_are_bounded() -> None:
    file = io.BytesIO()
    send(file, {"path": "a\udcff"})
    file.seek(0)
    assert receive(file) == {"path": "a\udcff"}
    for data, error in {b"": EOFError, b"\0\0\0\x05{}": EOFError, b"\xff\xff\xff\xff": ValueError}.items():
        with pytest.raises(error):
            receive(io.BytesIO(data))
