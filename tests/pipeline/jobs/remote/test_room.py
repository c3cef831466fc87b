"""What is fetched takes a bounded number of bytes on the disk, and nothing afterwards."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from stores import Bucket

from tvae.pipeline.jobs.remote import fetching
from tvae.pipeline.jobs.room import Room

Run = Callable[..., Any]


@pytest.mark.long
def test_bytes_in_flight(
    run: Run, picture: Callable[..., Path], bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not items: room for two photos, sixteen threads, and one photo that is larger than the room."""
    photos = [picture(f"{n}.png", 512, 512, seed=n) for n in range(12)]
    size = max(photo.stat().st_size for photo in photos)
    large = picture("large.png", 2048, 2048)
    for photo in (*photos, large):
        bucket.put(f"in/{photo.name}", photo)
    assert large.stat().st_size > 3 * size
    monkeypatch.setattr(fetching, "_ROOM", Room(2 * size))
    spill, most, over = tmp_path / "spill", 0, threading.Event()
    spill.mkdir()

    def watch() -> None:
        nonlocal most
        while not over.is_set():
            found = 0
            for folder, _, names in os.walk(spill):
                for name in names:
                    with suppress(OSError):  # gone since
                        found += os.path.getsize(os.path.join(folder, name))
            most = max(most, found)
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        finished, _ = run("encode", bucket.url("in"), output=tmp_path / "out", spill=str(spill))
    finally:
        over.set()
        watcher.join()
    assert finished.done == 13
    assert 0 < most <= large.stat().st_size
    assert [path for path in spill.rglob("*") if path.is_file()] == []


def test_a_clip_waits_for_no_room(
    run: Run, clip: Callable[..., Path], bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever computes must not wait for readers, who wait for it."""
    room = Room(1)
    room.take(1)
    monkeypatch.setattr(fetching, "_ROOM", room)
    url = bucket.put("c.mkv", clip("c.mkv"))
    assert run("encode", url, output=tmp_path / "out")[0].done == 1
    latents = bucket.put_folder(tmp_path / "out/c.mkv.latents", "c.mkv.latents")
    assert run("decode", latents, output=tmp_path / "films")[0].done == 1
