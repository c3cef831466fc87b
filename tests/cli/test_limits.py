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


@pytest.mark.long
def test_plan_counts_the_decoding_of_a_picture_in_its_budget(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    Image.new("L", (12000, 12000)).save(path, compress_level=1)
    result = invoke(["plan", str(path), "--vram", "700MiB", "--device", "cpu"])
    assert result.exit_code == 3
    assert "reading 12000x12000 pixels takes" in result.stderr


def test_a_header_of_tensors_has_16_mib_at_most(tmp_path: Path) -> None:
    path, length = tmp_path / "a.safetensors", (16 << 20) + 8
    path.write_bytes(length.to_bytes(8, "little") + b"{}".ljust(length))
    result = invoke(["inspect", str(path)])
    assert result.exit_code != 0
    assert "16 MiB" in result.stderr


@pytest.mark.parametrize("text", ["a" + ".a" * 20000 + " = 1", "x = {a" + ".a" * 40 + " = 1}"])
def test_a_key_of_a_job_file_has_32_parts_at_most(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text)
    result = invoke(["batch", str(path)])
    assert result.exit_code == 2
    assert "a key has more than 32 parts" in result.stderr
    assert len(result.stderr.splitlines()) == 1
