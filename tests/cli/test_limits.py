"""``--max-megapixels``: an image of any size may hide in a small file."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from program import invoke


@pytest.fixture
def picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """1.1 megapixels in a few kilobytes."""
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (1100, 1000), (9, 200, 90)).save("p.gif")  # whose name does not tell whether it is a video
    return "p.gif"


@pytest.mark.parametrize("command", ["encode", "roundtrip", "plan", "inspect"])
def test_larger_images_are_refused(picture: str, command: str) -> None:
    several = [picture] if command in ("plan", "inspect") else [picture, "-o", "out", "--dry-run"]
    refused = invoke([command, *several, "--max-megapixels", "1"])
    assert refused.exit_code in (2, 3)
    (line,) = (line for line in refused.stderr.splitlines() if "megapixels" in line)
    assert "p.gif: has 1100x1000 pixels, more than the limit of 1 megapixels" in line
    assert "--max-megapixels" in line
    taken = invoke([command, *several, "--max-megapixels", "2"])
    assert taken.exit_code == 0, taken.output


def test_a_limit_that_allows_nothing_is_refused(picture: str) -> None:
    assert invoke(["encode", picture, "--max-megapixels", "0"]).exit_code == 2
