"""Photos of a store and of a web server become the latents that they become as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load, load_file
from stores import Bucket, web_server

from tvae.pipeline.jobs import ItemDone, ItemFailed

Run = Callable[..., Any]


def outputs(events: list[Any], kind: type[Any] = ItemDone) -> list[str]:
    return sorted(str(event.output) for event in events if isinstance(event, kind))


def test_a_bucket_to_a_bucket(run: Run, picture: Callable[..., Path], bucket: Bucket, tmp_path: Path) -> None:
    photos = [picture(f"photos/{n}.png", seed=n) for n in range(3)]
    run("encode", tmp_path / "photos", output=tmp_path / "here")
    for photo in photos:
        bucket.put(f"in/{photo.name}", photo)
    bucket.put("in/notes.txt", b"none")
    finished, events = run("encode", bucket.url("in/"), output=bucket.url("out"))
    assert (finished.done, finished.failed) == (3, 0)
    assert outputs(events) == [bucket.url(f"out/{photo.name}.safetensors") for photo in photos]
    assert sorted(key for key in bucket.names() if key.startswith("out")) == [
        f"out/{photo.name}.safetensors" for photo in photos
    ]
    for photo in photos:
        there = load(bucket.get(f"out/{photo.name}.safetensors"))
        here = load_file(tmp_path / f"here/{photo.name}.safetensors")
        assert there.keys() == here.keys()
        assert all(there[name].equal(here[name]) for name in here)


def test_a_web_server(run: Run, picture: Callable[..., Path], bucket: Bucket, tmp_path: Path) -> None:
    photo = picture("web/a b.png")
    run("encode", photo, output=tmp_path / "here")
    with web_server(tmp_path / "web") as address:
        finished, events = run("encode", f"{address}/a%20b.png?token=secret", output=tmp_path / "out")
        assert finished.done == 1
        assert not any("secret" in str(event.to_json()) for event in events)
        again, _ = run("encode", f"{address}/a%20b.png?token=secret", output=tmp_path / "out")
        assert again.skipped == 1
    there, here = (load_file(tmp_path / f"{where}/a b.png.safetensors") for where in ("out", "here"))
    assert there["latents"].equal(here["latents"])


@pytest.mark.parametrize("operation", ["encode", "roundtrip"])
def test_an_image_that_is_called_like_a_video(
    operation: str, run: Run, picture: Callable[..., Path], bucket: Bucket, tmp_path: Path
) -> None:
    """It is not fetched before its turn comes, and fails alone."""
    for name in ("a.png", "b.mkv", "c.png"):
        bucket.put(f"in/{name}", picture(f"made/{name}.png"))
    done, events = run(operation, bucket.url("in"), output=tmp_path / "out")
    assert (done.done, done.failed) == (2, 1)
    (error,) = [event.error for event in events if isinstance(event, ItemFailed)]
    assert error == f"{bucket.url('in/b.mkv')} is an image, and is called like a video; rename it"
