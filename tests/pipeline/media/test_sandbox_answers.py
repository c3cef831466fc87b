"""What comes out of the process that decodes is checked like a file."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import sandbox
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


@pytest.mark.parametrize(
    "answers",
    [
        [{"image": INFO | {"width": 1 << 20, "height": 1 << 20}, "warnings": []}],
        [{"image": INFO | {"width": -4}, "warnings": []}],
        [{"image": INFO | {"kind": "video"}, "warnings": []}],
        [{"image": INFO | {"bits": "8"}, "warnings": []}],
        [{"image": [], "warnings": []}],
        [{"image": INFO, "warnings": []}],  # and no pixels
        [{"held": 1 << 60}],
        [{"held": -1}],
        [{"held": "much"}],
        ["text"],
    ],
)
def test_answers_are_not_trusted(answers: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = LIAR + "".join(f"send({answer!r})\n" for answer in answers)
    monkeypatch.setattr(sandbox, "COMMAND", (sys.executable, "-c", script))
    Image.new("RGB", (4, 2)).save(tmp_path / "a.png")
    with Sandbox("on") as there, pytest.raises(InputError, match=r"a\.png: its decoder"):
        there.read_image(tmp_path / "a.png", memory=1 << 30)


def test_messages_are_bounded() -> None:
    file = io.BytesIO()
    send(file, {"path": "a\udcff"})
    file.seek(0)
    assert receive(file) == {"path": "a\udcff"}
    for data, error in {b"": EOFError, b"\0\0\0\x05{}": EOFError, b"\xff\xff\xff\xff": ValueError}.items():
        with pytest.raises(error):
            receive(io.BytesIO(data))
