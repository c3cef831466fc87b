"""Archives of this machine whose results go to a store: their texts go there, too."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stores import Bucket

Run = Callable[..., Any]


def test_texts_go_with_the_results(run: Run, picture: Callable[..., Path], bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        for n in range(2):
            text = tmp_path / f"made/{n}.txt"
            text.write_text(f"a caption {n}\n")
            os.utime(text, (10**9, 10**9))
            archive.add(picture(f"made/{n}.png", seed=n), f"{n}.png")
            archive.add(text, f"{n}.txt")
    finished, _ = run("encode", tmp_path / "photos.tar", output=bucket.url("out"))
    assert (finished.done, finished.failed) == (2, 0)
    names = [f"out/photos/{n}.{end}" for n in range(2) for end in ("png.safetensors", "txt")]
    assert bucket.names() == sorted(names)
    assert bucket.get("out/photos/1.txt") == b"a caption 1\n"
    bucket.put("out/photos/1.txt", b"changed by hand\n")
    bucket.server.requests.clear()
    again, _ = run("encode", tmp_path / "photos.tar", output=bucket.url("out"))
    assert again.skipped == 2
    assert bucket.asked("PUT") == []
    assert bucket.get("out/photos/1.txt") == b"changed by hand\n"
    run("encode", tmp_path / "photos.tar", output=bucket.url("out"), existing="overwrite")
    assert bucket.get("out/photos/1.txt") == b"a caption 1\n"
