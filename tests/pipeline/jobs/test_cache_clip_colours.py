"""Clips in YUV have the latents of the frames that trainers see, which PyAV converts for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from cache_vaes import reference, saved
from safetensors.torch import load_file
from tiny_vaes import relative_l2

from tvae.pipeline.caches import CacheRequest
from tvae.pipeline.jobs import Job, run_job
from tvae.pipeline.media import open_reader


def film(path: Path) -> None:
    rng = np.random.default_rng(1)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=16, options={"qp": "4"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.colorspace, stream.codec_context.color_range = 1, 1
        for _ in range(5):
            pixels = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8).repeat(4, 0).repeat(4, 1)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def latents_of(model: Any, frames: list[np.ndarray]) -> torch.Tensor:
    clip = torch.from_numpy(np.stack(frames)).permute(3, 0, 1, 2).unsqueeze(0)
    mean = reference(model, clip)[0]
    shift, scale = (torch.tensor(model.config[name]).view(1, -1, 1, 1, 1) for name in ("latents_mean", "latents_std"))
    return ((mean - shift) / scale)[0].to(torch.bfloat16)


@pytest.mark.long
def test_frames_are_converted_as_for_the_trainer(tmp_path: Path) -> None:
    wan: Any = saved("wan", tmp_path / "vae")
    source = tmp_path / "a.mp4"
    film(source)
    job = Job(
        "cache",
        (str(source),),
        output=str(tmp_path / "out"),
        vae=str(wan.folder),
        dtype="float32",
        size=(64, 48),
        cache=CacheRequest("musubi", "wan", frames=(5,)),
    )
    run_job(job, lambda _event: None)
    (value,) = load_file(tmp_path / "out" / "a_00000-005_0064x0048_wan.safetensors").values()
    with av.open(str(source)) as container:
        theirs = [np.asarray(frame.to_image()) for frame in container.decode(video=0)]
    with open_reader(source) as reader:
        exact = [frame.rgb for frame in reader]
    assert relative_l2(value, latents_of(wan, theirs)) < 1e-4
    assert relative_l2(value, latents_of(wan, exact)) > 3e-4, "the test can tell them apart"
