"""Results of jobs outlive a power cut: flushed before they have their names, their folders after."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip
from durable import Disk

from tvae.pipeline.jobs import checkpoint

Run = Callable[..., Any]

pytestmark = pytest.mark.skipif(os.name == "nt", reason="folders cannot be flushed there")


@pytest.mark.parametrize("video", [False, True])
def test_results(video: bool, run: Run, picture: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a clip of nine parts of latents and two of a film, with sound."""
    monkeypatch.setattr(checkpoint, "SHARE", 1e9)  # keep one after every part
    source = tmp_path / "clip.mkv" if video else picture()
    if video:
        write_clip(source, 130, sound=True)
    for operation, item, fields in (
        ("encode", source, {}),
        ("encode", source, {"space": "model"}),  # over an older one
        ("decode", tmp_path / "encode", {}),
        ("roundtrip", source, {}),
    )[: 3 if video else 4]:
        with monkeypatch.context() as patch:
            disk = Disk(patch)
            done, events = run(operation, item, output=tmp_path / operation, **fields)
        assert done.done == 1, events
        disk.check(tmp_path / operation)
        assert len(disk.named) > (3 if video and operation != "roundtrip" else 0)
