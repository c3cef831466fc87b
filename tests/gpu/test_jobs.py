"""Whole jobs on a GPU: every operation, pictures and a clip, VAEs of pictures and of clips, however memory is bounded.

The oracle is the model's own call in float64; pictures may differ from its by a level.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cache_vaes import reference, saved
from clips import write_clip
from PIL import Image
from safetensors.torch import load_file
from tiny_vaes import relative_l2
from torch import Tensor

from tvae.pipeline import load_latents
from tvae.pipeline.jobs import Event, ItemFailed, Job, run_job
from tvae.pipeline.media import open_reader
from tvae.pipeline.session import model as opening

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
VAES = ("sdxl", "flux2", "wan", "hunyuan", "ltx")
BOUNDS: dict[str, dict[str, Any]] = {
    "free": {},
    "named": {"vram": "4GiB"},
    "one at a time": {"batch": 1},
    "strips": {"strip": 8},
    "no graphs": {"preset": "cpu"},
    "large": {},
}
"""Large: each picture counts as one of which floats exist for a strip only."""
SIZES = [(64, 64)] * 3 + [(96, 64)]


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    rng = np.random.default_rng(0)
    for number, (width, height) in enumerate(SIZES):
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {name: saved(name, tmp_path_factory.mktemp(name)) for name in VAES}


def work(operation: Any, source: Path, count: int = len(SIZES), **options: Any) -> None:
    failed: list[Event] = []
    done = run_job(
        Job(operation, (str(source),), device="cuda", dtype="float32", **options),
        lambda event: failed.append(event) if isinstance(event, ItemFailed) else None,
    )
    assert not failed
    assert done.done == count


def pixels_of(path: Path, name: str) -> Tensor:
    pixels = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1).unsqueeze(0)
    return pixels if name in ("sdxl", "flux2") else pixels.unsqueeze(2)


def decoded(model: Any, latents: Tensor) -> np.ndarray:
    """Levels [H, W, 3] of the first frame, by the model's own call."""
    wide = model.double()
    with torch.no_grad():
        found = wide.decode(latents.double(), return_dict=False)[0]
    model.float()
    first = found[0] if found.ndim == 4 else found[0, :, 0]
    return (first.permute(1, 2, 0).clamp(-1, 1) * 127.5 + 127.5).round().numpy().astype(np.uint8)


def held_against(path: Path, wanted: np.ndarray) -> None:
    found = np.array(Image.open(path).convert("RGB"))
    assert found.shape == wanted.shape
    assert np.abs(found.astype(int) - wanted).max() <= 1


@pytest.fixture(autouse=True)
def small_limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.callspec.params["bound"] == "large":
        monkeypatch.setattr(opening, "_RECORDED_PIXELS", 1000)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("name", VAES)
def test_pictures(name: str, bound: str, media: Path, models: dict[str, Any], tmp_path: Path) -> None:
    model, options = models[name], {"vae": str(models[name].folder), **BOUNDS[bound]}
    work("encode", media, output=str(tmp_path / "latents"), **options)
    work("decode", tmp_path / "latents", output=str(tmp_path / "decoded"), **options)
    work("roundtrip", media, output=str(tmp_path / "again"), **options)
    for number in range(len(SIZES)):
        (mean,) = load_file(tmp_path / "latents" / f"{number}.png.safetensors").values()
        wanted = reference(model, pixels_of(media / f"{number}.png", name))[0][0]
        assert relative_l2(mean.reshape(wanted.shape), wanted) < 1e-5
        picture = decoded(model, wanted.unsqueeze(0))
        held_against(tmp_path / "decoded" / f"{number}.png", picture)
        held_against(tmp_path / "again" / f"{number}.png", picture)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("name", VAES)
def test_a_clip(name: str, bound: str, models: dict[str, Any], tmp_path: Path) -> None:
    """Its latents; of the film that is decoded, and of the one that comes back, the number of frames."""
    model, options = models[name], {"vae": str(models[name].folder), **BOUNDS[bound]}
    clip, frames = tmp_path / "clip.mkv", 17
    write_clip(clip, frames, sound=False, side=64)
    work("encode", clip, 1, output=str(tmp_path / "latents"), **options)
    work("decode", tmp_path / "latents", 1, output=str(tmp_path / "decoded"), **options)
    work("roundtrip", clip, 1, output=str(tmp_path / "again"), **options)
    with open_reader(clip) as reader:
        levels = torch.stack([torch.from_numpy(frame.rgb.copy()).permute(2, 0, 1) for frame in reader])
    pixels = levels if name in ("sdxl", "flux2") else levels.transpose(0, 1).unsqueeze(0)
    mean = reference(model, pixels)[0]
    wanted = mean.transpose(0, 1) if mean.ndim == 4 else mean[0]
    (folder,) = (tmp_path / "latents").iterdir()
    assert relative_l2(load_latents(folder).tensor, wanted) < 1e-5
    for made in ("decoded", "again"):
        (film,) = (tmp_path / made).iterdir()
        with open_reader(film) as reader:
            assert reader.count() == frames
