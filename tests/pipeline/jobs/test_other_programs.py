"""Latents that samplers, ComfyUI and trainers wrote decode to the picture that the model itself gives."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from diffusers import Flux2Pipeline, FluxPipeline
from foreign_files import WRITERS, decode, latents_of, saved_model
from PIL import Image
from safetensors.torch import save_file
from tiny_pipelines import PIPELINES, clip_of
from torch import Tensor

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import ItemFailed, Job, run_job

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return saved_model(tmp_path_factory.mktemp("vae"))


def own_picture(model: Any, z: Tensor) -> np.ndarray:
    with torch.no_grad():
        pixels = model.decode(z).sample[0].permute(1, 2, 0)
    return ((pixels / 2 + 0.5).clamp(0, 1) * 255).round().numpy()


def assert_shows(path: Path, wanted: np.ndarray) -> None:
    found = np.asarray(Image.open(path)).astype(float)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 1


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_gives_the_models_own_picture(name: str, model: Any, tmp_path: Path) -> None:
    z = latents_of(model)
    WRITERS[name](tmp_path / name, z)
    before = (tmp_path / name).read_bytes()
    decode(model, tmp_path / name, out=tmp_path / "out")
    assert_shows(tmp_path / "out" / f"{Path(name).stem}.png", own_picture(model, z))
    assert (tmp_path / name).read_bytes() == before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_lower_types_are_read(dtype: torch.dtype, model: Any, tmp_path: Path) -> None:
    z = latents_of(model).to(dtype)
    save_file({"latents": z}, tmp_path / "a.safetensors")
    decode(model, tmp_path / "a.safetensors", out=tmp_path / "a.png")
    assert_shows(tmp_path / "a.png", own_picture(model, z.float()))


def test_model_space_is_undone(model: Any, tmp_path: Path) -> None:
    z = latents_of(model)
    save_file({"latents": z * model.config.scaling_factor}, tmp_path / "a.safetensors")
    decode(model, tmp_path / "a.safetensors", out=tmp_path / "a.png", space="model")
    assert_shows(tmp_path / "a.png", own_picture(model, z))


def test_several_in_a_file_are_several_pictures(model: Any, tmp_path: Path) -> None:
    both = [latents_of(model, seed) for seed in (1, 2)]
    np.save(tmp_path / "a.npy", torch.cat(both).numpy())
    decode(model, tmp_path / "a.npy", out=tmp_path / "out")
    for number, z in enumerate(both):
        assert_shows(tmp_path / "out" / f"a-{number:04d}.png", own_picture(model, z))


@pytest.mark.parametrize("seed", range(20))
def test_names_that_meet(seed: int, model: Any, tmp_path: Path) -> None:
    """Every picture is written under a name of its own, or the run is refused before any is."""
    rng, folder, out = random.Random(seed), tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    wanted: dict[str, Tensor] = {}
    outputs = 0
    for name in rng.sample([f"{stem}.{end}" for stem in ("a", "a-0000", "a-0001") for end in ("npy", "pt")], 3):
        each = [latents_of(model, rng.randrange(1000)) for _ in range(rng.randint(1, 3))]
        write = WRITERS["whole.npy" if name.endswith("npy") else "UPPER.PT"]
        write(folder / name, torch.cat(each))
        stem, outputs = Path(name).stem, outputs + len(each)
        wanted |= {stem + (f"-{n:04d}" if len(each) > 1 else "") + ".png": z for n, z in enumerate(each)}
    if len(wanted) < outputs:
        with pytest.raises(UsageError, match="would both be written to"):
            decode(model, folder, out=out)
        assert not out.exists()
        return
    decode(model, folder, out=out)
    assert {path.name for path in out.iterdir()} == {*wanted}
    for name, z in wanted.items():
        assert_shows(out / name, own_picture(model, z))


def test_the_key_that_is_named_is_taken(model: Any, tmp_path: Path) -> None:
    first, second = latents_of(model, 1), latents_of(model, 2)
    save_file({"latents": first, "other": second}, tmp_path / "a.safetensors")
    decode(model, tmp_path / "a.safetensors", out=tmp_path / "a.png", latents_key="other")
    assert_shows(tmp_path / "a.png", own_picture(model, second))


def test_a_folder_of_all_sorts(model: Any, run: Run, tmp_path: Path) -> None:
    """Among them latents of tvae, which say what they are."""
    folder = tmp_path / "in"
    folder.mkdir()
    Image.new("RGB", (16, 16), (200, 30, 90)).save(tmp_path / "photo.png")
    run_job(Job("encode", (str(tmp_path / "photo.png"),), output=str(folder), vae=str(model.folder)), lambda _: None)
    for name in ("comfy.latent", "kohya.npz"):
        WRITERS[name](folder / name, latents_of(model))
    (folder / "note.txt").write_text("no latents")
    events = decode(model, folder, out=tmp_path / "out")
    assert not [event for event in events if isinstance(event, ItemFailed)]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"photo.png", "comfy.png", "kohya.png"}


def test_made_again_where_the_file_or_the_wish_has_changed(model: Any, tmp_path: Path) -> None:
    source, out = tmp_path / "a.npy", tmp_path / "a.png"
    np.save(source, latents_of(model, 1).numpy())
    decode(model, source, out=out)
    first = out.stat().st_mtime_ns
    decode(model, source, out=out)
    assert out.stat().st_mtime_ns == first
    decode(model, source, out=out, space="model")
    assert out.stat().st_mtime_ns != first
    np.save(source, latents_of(model, 2).numpy())
    os.utime(source, ns=(1, 1))
    decode(model, source, out=out)
    assert_shows(out, own_picture(model, latents_of(model, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["wan"])
def test_what_a_sampler_leaves_is_the_clip_that_it_decodes(family: str, tmp_path: Path) -> None:
    pipeline, call = PIPELINES[family]()
    own = clip_of(pipeline, call)[0].permute(0, 2, 3, 1).numpy() * 255
    size = {"height": 32, "width": 64, "num_frames": 9, "generator": torch.Generator().manual_seed(7)}
    steps: dict[str, Any] = {"num_inference_steps": 2, "guidance_scale": 1.0, "output_type": "latent"}
    torch.save(pipeline(**call, **size, **steps, return_dict=False)[0], tmp_path / "clip.pt")
    pipeline.vae.save_pretrained(tmp_path / "vae")
    fields: dict[str, Any] = {"vae": str(tmp_path / "vae"), "latents_space": "model", "dtype": "float32"}
    options: dict[str, Any] = {"codec": "ffv1", "pix_fmt": "bgr0"}
    job = Job("decode", (str(tmp_path / "clip.pt"),), output=str(tmp_path / "clip.mkv"), **fields, **options)
    assert run_job(job, lambda _: None).done == 1
    with av.open(str(tmp_path / "clip.mkv")) as video:
        frames = [frame.to_ndarray(format="rgb24").astype(float) for frame in video.decode(video=0)]
    assert len(frames) == len(own) == 9
    for frame, wanted in zip(frames, own, strict=True):
        assert np.abs(frame - wanted).max() <= 1


# -- a stand-in has shift and scale, and clips -------------------------------------------------------------------------
def grey(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(3)) * 2 - 1


def levels(z: Tensor) -> np.ndarray:
    """The stand-in's picture of raw latents [C, h, w]."""
    large = z.repeat_interleave(8, 1).repeat_interleave(8, 2).permute(1, 2, 0)
    return ((large / 2 + 0.5).clamp(0, 1) * 255).round().numpy()


@pytest.mark.parametrize("several", [1, 3])
def test_tokens_of_flux(several: int, run: Run, stand_in: Run, tmp_path: Path) -> None:
    z = grey(several, 3, 6, 4)
    tokens = FluxPipeline._pack_latents((z - 0.25) * 0.5, several, 3, 6, 4)
    save_file({"latents": tokens.contiguous()}, tmp_path / "a.safetensors")
    fields: dict[str, Any] = {"vae": "it", "latents_space": "model", "size": (33, 50)}  # Flux takes whole squares
    done, _ = run("decode", tmp_path / "a.safetensors", output=tmp_path / "out", model=stand_in(), **fields)
    assert (done.done, done.failed) == (several, 0)
    for number, one in enumerate(z):
        assert_shows(tmp_path / "out" / (f"a-{number:04d}.png" if several > 1 else "a.png"), levels(one))


def test_tokens_of_flux_2(run: Run, stand_in: Run, tmp_path: Path) -> None:
    z = grey(1, 3, 6, 4)
    save_file({"latents": Flux2Pipeline._pack_latents(z).contiguous()}, tmp_path / "a.safetensors")
    fields: dict[str, Any] = {"vae": "it", "latents_space": "raw", "size": (32, 48)}
    run("decode", tmp_path / "a.safetensors", output=tmp_path / "a.png", model=stand_in(), **fields)
    assert_shows(tmp_path / "a.png", levels(z[0]))


@pytest.mark.parametrize("shape", [(3, 5, 2, 4), (1, 3, 5, 2, 4)])
@pytest.mark.parametrize("fps", [None, 10])
def test_a_clip(shape: tuple[int, ...], fps: int | None, run: Run, stand_in: Run, tmp_path: Path) -> None:
    z = grey(*shape)
    np.save(tmp_path / "clip.npy", z.numpy())
    fields: dict[str, Any] = {
        "vae": "it",
        "latents_space": "raw",
        "fps": None if fps is None else Fraction(fps),
        "crf": 0,
    }
    done, events = run(
        "decode", tmp_path / "clip.npy", output=tmp_path / "out", model=stand_in(temporal_factor=4), **fields
    )
    assert (done.done, done.failed) == (1, 0), events
    with av.open(str(tmp_path / "out" / "clip.mp4")) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
        assert video.streams.video[0].average_rate == (fps or 24)
    assert len(frames) == 17
    own = z.reshape(3, 5, 2, 4)
    for number, frame in enumerate(frames):
        wanted = levels(own[:, (number + 3) // 4])
        assert np.abs(frame.mean((0, 1)) - wanted.mean((0, 1))).max() <= 3


@pytest.mark.parametrize("shape", [(3, 5, 2, 4), (1, 3, 5, 2, 4)])
def test_frames_of_an_image_vae_are_a_clip(shape: tuple[int, ...], run: Run, stand_in: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "clip.npy", grey(*shape).numpy())
    fields: dict[str, Any] = {"vae": "it", "latents_space": "raw"}
    done, _ = run("decode", tmp_path / "clip.npy", output=tmp_path / "out", model=stand_in(), **fields)
    assert (done.done, done.failed) == (1, 0)
    with av.open(str(tmp_path / "out" / "clip.mp4")) as video:
        assert sum(1 for _ in video.decode(video=0)) == 5
