"""``tvae verify``: what is damaged, stale, incomplete or fine, and the exit code."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip
from typer.testing import Result

Tvae = Callable[..., Result]


def states(result: Result) -> dict[str, str]:
    return {Path(line["path"]).name: line["state"] for line in map(json.loads, result.stdout.splitlines())}


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    write_clip(tmp_path / "clip.mkv", 3, sound=True)
    return tmp_path / "clip.mkv"


@pytest.fixture
def encoded(tvae: Tvae, photo: Path, clip: Path, tmp_path: Path) -> Path:
    assert tvae("encode", photo, clip, "-o", tmp_path / "latents").exit_code == 0
    return tmp_path / "latents"


def test_verify(tvae: Tvae, photo: Path, clip: Path, encoded: Path) -> None:
    image, folder = f"{photo.name}.safetensors", f"{clip.name}.latents"
    (encoded / "others.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    result = tvae("verify", encoded, "--json")
    assert (result.exit_code, states(result)) == (0, {image: "fine", folder: "fine"})
    assert tvae("verify", encoded).stdout == "2 fine\n"
    part = encoded / folder / "000000.safetensors"
    data = bytearray(part.read_bytes())
    data[-3] ^= 16
    part.write_bytes(data)
    result = tvae("verify", encoded)
    assert result.exit_code == 4
    told, counts = result.stdout.splitlines()
    assert told.startswith(f"{encoded / folder}: damaged: '{part}' is damaged: ")
    assert sorted(counts.split(", ")) == ["1 damaged", "1 fine"]
    (encoded / folder / "index.json").unlink()
    result = tvae("verify", encoded / image, encoded / folder, "--json")
    assert (result.exit_code, states(result)) == (4, {image: "fine", folder: "incomplete"})


def test_the_path_is_told_once(tvae: Tvae, encoded: Path, photo: Path) -> None:
    image = encoded / f"{photo.name}.safetensors"
    whole = image.read_bytes()
    image.write_bytes(whole[:-7])
    told = tvae("verify", image).stdout.splitlines()[0]
    assert told == f"{image}: damaged: the file has other bytes than its header promises"
    image.write_bytes(whole[:-1] + bytes([whole[-1] ^ 16]))
    told = tvae("verify", image).stdout.splitlines()[0]
    assert told == f"{image}: damaged: its values or metadata are not those that were written; encode again"


def test_what_has_changed_since(tvae: Tvae, photo: Path, encoded: Path, tmp_path: Path) -> None:
    image = encoded / f"{photo.name}.safetensors"
    assert states(tvae("verify", image, "--source", photo.parent, "--json")) == {image.name: "fine"}
    os.utime(photo, (1, 1))
    result = tvae("verify", image, "--source", photo.parent)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == f"{image}: stale: its source {photo} has changed"
    result = tvae("verify", image, "--vae", "builtin")
    assert "stale: it was made by another VAE: " in result.stdout


def test_what_cannot_be_verified(tvae: Tvae, photo: Path, tmp_path: Path) -> None:
    for path, code in ((tmp_path / "not there", 2), (photo, 3)):
        result = tvae("verify", path)
        assert (result.exit_code, len(result.stderr.splitlines())) == (code, 1)
    (tmp_path / "empty").mkdir()
    assert tvae("verify", tmp_path / "empty").stdout == "no latents here\n"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_what_is_no_file_ends_nothing(tvae: Tvae, photo: Path, tmp_path: Path) -> None:
    """What comes after it in the folder is verified."""
    assert tvae("encode", photo, "-o", tmp_path / "latents").exit_code == 0
    os.mkfifo(tmp_path / "latents" / "a.safetensors")
    result = tvae("verify", tmp_path / "latents", "--json")
    assert (result.exit_code, states(result)) == (4, {"a.safetensors": "damaged", f"{photo.name}.safetensors": "fine"})


@pytest.mark.long
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("what", ["image", "part", "index", "manifest's"])
def test_what_this_machine_does_not_give(
    tvae: Tvae, photo: Path, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, number: int
) -> None:
    """It may be whole: nothing is said of it, but that it was not read."""
    job = tmp_path / "job.toml"
    job.write_text(f"operation = 'roundtrip'\ninputs = ['{photo.as_posix()}']\noutput = 'latents'\n")
    assert tvae("batch", job).exit_code == 0
    assert tvae("encode", photo, clip, "-o", tmp_path / "latents").exit_code == 0
    names = {"image": f"{photo.name}.safetensors", "part": "000000.safetensors", "index": "index.json"}
    refused, opened = names.get(what, photo.name), os.open

    def fails(path: Any, *more: Any, **how: Any) -> int:
        if Path(path).name == refused and Path(path).is_relative_to(tmp_path / "latents"):
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *more, **how)

    monkeypatch.setattr(os, "open", fails)
    result = tvae("verify", tmp_path / "latents", "--json")
    assert result.exit_code == 3
    assert sorted(states(result).values()) == ["fine", "fine", "unreadable"]
    told = next(line["reason"] for line in map(json.loads, result.stdout.splitlines()) if line["state"] == "unreadable")
    assert os.strerror(number) in told
    step = tmp_path / "verify.toml"
    step.write_text("operation = 'verify'\ninputs = ['latents']\n")
    assert tvae("batch", step).exit_code == 4
