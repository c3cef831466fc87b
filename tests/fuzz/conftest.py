"""What the damage is done to: latents of a picture and of a clip with sound."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from mutations import read_tensor_file, write_tensor_file
from PIL import Image
from stand_in import StandIn

from tvae.pipeline.jobs import Job, run_job


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The file of the picture's latents, and the folder of the clip's; without checksums, which find any damage."""
    folder = tmp_path_factory.mktemp("sources")
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (16, 32, 3), dtype=np.uint8)).save(folder / "good.png")
    with av.open(str(folder / "clip.mp4"), "w") as output:
        picture, sound = output.add_stream("libx264", rate=25), output.add_stream("aac", rate=48000)
        picture.width, picture.height, picture.pix_fmt = 32, 16, "yuv420p"
        picture.metadata["language"] = "fra"
        output.metadata.update({"title": "a title", "comment": "a comment"})
        chapter = {"id": 1, "start": 0, "end": 80, "time_base": Fraction(1, 1000), "metadata": {"title": "one"}}
        output.set_chapters([chapter])
        for _ in range(4):
            frame = av.VideoFrame.from_ndarray(rng.integers(0, 256, (16, 32, 3), dtype=np.uint8), format="rgb24")
            output.mux(picture.encode(frame))
        noise = av.AudioFrame.from_ndarray(rng.normal(0, 0.1, (2, 8192)).astype(np.float32), "fltp", "stereo")
        noise.sample_rate = 48000
        output.mux([*picture.encode(), *sound.encode(noise), *sound.encode()])
    out = folder / "latents"
    done = run_job(Job("encode", (str(folder),), output=str(out)), lambda _: None, model=StandIn())  # type: ignore[arg-type]
    assert done.done == 2
    image, clip = out / "good.png.safetensors", out / "clip.mp4.latents"
    for path in (image, *clip.glob("*.safetensors")):
        header, values = read_tensor_file(path)
        del header["__metadata__"]["checksum"]
        write_tensor_file(path, header, values)
    index = json.loads((clip / "index.json").read_text())
    for entry in (index, *index["parts"], *index["streams"]["files"]):
        del entry["checksum"]
    for entry in index["parts"]:
        entry["bytes"] = (clip / entry["file"]).stat().st_size
    (clip / "index.json").write_text(json.dumps(index))
    return image, clip
