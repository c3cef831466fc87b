"""A JPEG that is made smaller is resized from all its pixels: libjpeg's reduced decoding gives others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tvae.pipeline.jobs import Job
from tvae.pipeline.jobs.reading import open_source
from tvae.pipeline.media.sandbox import Sandbox, SandboxMode


@pytest.mark.parametrize("mode", ["off", "on"])
@pytest.mark.parametrize("vram", [None, "1GiB"])
def test_from_all_its_pixels(mode: SandboxMode, vram: str | None, tmp_path: Path) -> None:
    coarse = np.random.default_rng(0).integers(0, 256, (96, 128, 3), dtype=np.uint8)
    path, size = tmp_path / "a.jpg", (64, 48)
    Image.fromarray(coarse).resize((512, 384), Image.Resampling.BICUBIC).save(path, quality=90)
    job = Job("encode", (str(path),), size=size, vram=vram, device="cpu")
    with Sandbox(mode) as sandbox, open_source(path, job, 8, sandbox) as source:
        ((rgb,),) = (chunk.frames for chunk in source.frames())
    with Image.open(path) as image:
        assert np.array_equal(rgb, np.asarray(image.convert("RGB").resize(size, Image.Resampling.LANCZOS)))
    with Image.open(path) as image:
        image.draft("RGB", size)
        assert not np.array_equal(rgb, np.asarray(image.resize(size, Image.Resampling.LANCZOS)))
