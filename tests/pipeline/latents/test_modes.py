"""Files of latents are as open to others as the user's umask says, all of them alike."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch

from tvae.pipeline.latents import LatentsMeta, VideoLatentsWriter, write_image_latents


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_modes(mask: int, tmp_path: Path, image_meta: LatentsMeta, clip_meta: LatentsMeta) -> None:
    before = os.umask(mask)
    try:
        write_image_latents(tmp_path / "a.safetensors", {"latents": torch.zeros(4, 2, 3)}, image_meta)
        with VideoLatentsWriter(tmp_path / "clip.latents", clip_meta) as writer:
            writer.add({"latents": torch.zeros(4, 1, 2, 3)}, [0], [1])
            writer.commit()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()}
    assert modes == dict.fromkeys(("a.safetensors", "000000.safetensors", "index.json"), 0o666 & ~mask)
