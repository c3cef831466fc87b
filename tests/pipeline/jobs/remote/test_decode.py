"""Latents of a store become the pictures and clips that they become as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from slow_but import slow_but
from stores import Bucket

from tvae.pipeline.errors import UsageError

Run = Callable[..., Any]


def test_images_there_and_back(run: Run, picture: Callable[..., Path], bucket: Bucket, tmp_path: Path) -> None:
    photo = picture("a.png")
    url = bucket.put("in/a.png", photo)
    run("encode", url, output=bucket.url("latents/"))
    finished, _ = run("decode", bucket.url("latents"), output=tmp_path / "out")
    assert finished.done == 1
    with Image.open(photo) as before, Image.open(tmp_path / "out/a.png") as after:
        assert np.array_equal(before, after)
    finished, _ = run("decode", bucket.url("latents/a.png.safetensors"), output=bucket.url("decoded/b.png"))
    assert finished.done == 1
    assert bucket.names("decoded") == ["decoded/b.png"]
    bucket.download("decoded", tmp_path / "decoded")
    with Image.open(photo) as before, Image.open(tmp_path / "decoded/b.png") as after:
        assert np.array_equal(before, after)


@pytest.mark.long
@pytest.mark.parametrize("suffix", slow_but([".webp"], [".png", ".webp", ".jpg", ".tiff", ".bmp"]))
def test_what_is_decoded_is_not_fetched_again(
    run: Run, picture: Callable[..., Path], bucket: Bucket, suffix: str
) -> None:
    """Formats keep their mark at the beginning or at the end."""
    run("encode", picture("a.png"), output=bucket.url("latents"))
    source, target = bucket.url("latents/a.png.safetensors"), bucket.url(f"out/a{suffix}")
    run("decode", source, output=target)
    first = bucket.get(f"out/a{suffix}")
    bucket.server.requests.clear()
    finished, _ = run("decode", source, output=target)
    assert finished.skipped == 1
    assert not bucket.asked("PUT")
    assert bucket.get(f"out/a{suffix}") == first
    run("encode", picture("a.png", seed=3), output=bucket.url("latents"))
    finished, _ = run("decode", source, output=target)
    assert finished.done == 1
    assert bucket.get(f"out/a{suffix}") != first


@pytest.mark.long
def test_a_clip_there_and_back(
    run: Run, clip: Callable[..., Path], bucket: Bucket, shown: Callable[[Path], Any], tmp_path: Path
) -> None:
    film = clip("c.mkv", tuple(range(0, 1600, 40)))
    url = bucket.put("in/c.mkv", film)
    run("encode", film, output=tmp_path / "here")
    finished, events = run("encode", url, output=bucket.url("latents"))
    assert finished.done == 1
    assert str(events[-2].output) == bucket.url("latents/c.mkv.latents")
    assert sorted(bucket.names("latents")) == sorted(
        f"latents/c.mkv.latents/{path.name}" for path in (tmp_path / "here/c.mkv.latents").iterdir()
    )
    finished, _ = run("decode", bucket.url("latents"), output=tmp_path / "out")
    assert finished.done == 1
    finished, _ = run("decode", bucket.url("latents/c.mkv.latents"), output=bucket.url("films/c.mp4"))
    assert finished.done == 1
    run("decode", tmp_path / "here", output=tmp_path / "there")
    bucket.download("films", tmp_path / "films")
    wanted = shown(tmp_path / "there/c.mkv.mp4")
    assert len(wanted) == 40
    assert shown(tmp_path / "out/c.mkv.mp4") == shown(tmp_path / "films/c.mp4") == wanted
    bucket.server.requests.clear()
    for output in (tmp_path / "out", bucket.url("films/c.mp4")):
        finished, _ = run("decode", bucket.url("latents/c.mkv.latents"), output=output)
        assert finished.skipped == 1
    assert not bucket.asked("GET", "latents/c.mkv.latents/0")
    assert not bucket.asked("PUT")


def test_an_incomplete_clip(run: Run, clip: Callable[..., Path], bucket: Bucket, tmp_path: Path) -> None:
    run("encode", clip("c.mkv"), output=tmp_path / "here")
    url = bucket.put_folder(tmp_path / "here/c.mkv.latents", "c.mkv.latents")
    bucket.client.delete_object(Bucket=bucket.name, Key="c.mkv.latents/000000.safetensors")
    finished, events = run("decode", bucket.url(""), output=tmp_path / "out")
    assert finished.failed == 1
    assert events[-2].error == f"'{url}' is incomplete: '000000.safetensors' is missing"
    bucket.client.delete_object(Bucket=bucket.name, Key="c.mkv.latents/index.json")
    bucket.put("c.mkv.latents/x", b"")
    finished, events = run("decode", url, bucket.url(""), output=tmp_path / "out")
    assert finished.failed == 1
    assert "its encode was interrupted" in events[-2].error


def test_latents_of_other_programs_are_read_from_this_machine(run: Run, bucket: Bucket) -> None:
    with pytest.raises(UsageError, match="files of this machine only"):
        run("decode", bucket.url("a.latent"), vae="x", latents_space="raw")
