"""A folder of latents is on the disk, with all that lies in it, before its index says that it is complete."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from durable import Disk

from tvae.pipeline.latents import LatentsMeta, VideoLatentsWriter


@pytest.mark.skipif(os.name == "nt", reason="folders cannot be flushed there")
def test_streams_that_others_wrote(tmp_path: Path, clip_meta: LatentsMeta, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):  # the second time beside a complete one
        with monkeypatch.context() as patch:
            disk = Disk(patch)
            with VideoLatentsWriter(tmp_path / "clip.mp4.latents", clip_meta) as writer:
                writer.add({"latents": torch.zeros(4, 1, 2, 3)}, [0], [1])
                writer.streams_stem.with_suffix(".mka").write_bytes(b"packets")
                writer.commit({})
        assert not disk.unflushed
