"""Latents that samplers, ComfyUI and trainers wrote decode to the picture that the model itself gives."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from diffusers import Flux2Pipeline, FluxPipeline
from PIL import Image
from safetensors.torch import save_file
from tiny_vaes import TINY
from torch import Tensor

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Event, ItemFailed, ItemPlanned, Job, run_job

Run = Callable[..., Any]
MARKER = {"latent_format_version_0": torch.tensor([])}


def numpys(path: Path, **arrays: Tensor) -> None:
    np.savez(path, **{name: value.numpy() for name, value in arrays.items()})


WRITERS: dict[str, Callable[[Path, Tensor], object]] = {
    "comfy.latent": lambda path, z: save_file({"latent_tensor": z, **MARKER}, path),
    "first.latent": lambda path, z: save_file({"latent_tensor": z * 0.18215}, path),
    "sampler.safetensors": lambda path, z: save_file({"latents": z[0], "noise": z[0] * 2}, path),
    "one_name.safetensors": lambda path, z: save_file({"whatever": z}, path),
    "dictionary.pt": lambda path, z: torch.save({"samples": z, "seed": 3}, path),
    "bare.pth": lambda path, z: torch.save(z[0], path),
    "double.pt": lambda path, z: torch.save(z.double(), path),
    "array.npy": lambda path, z: np.save(path, z[0].numpy()),
    "kohya.npz": lambda path, z: numpys(path, latents=z[0], original_size=torch.tensor([40, 48])),
    "fortran.npy": lambda path, z: np.save(path, np.asfortranarray(z.numpy())),
    "UPPER.PT": lambda path, z: torch.save(z, path),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    built: Any = TINY["AutoencoderKL"].build(1)
    built.save_pretrained(tmp_path_factory.mktemp("vae"))
    built.folder = tmp_path_factory.getbasetemp() / "vae0"
    return built


def latents_of(model: Any, seed: int = 0, height: int = 6, width: int = 5) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(1, model.config.latent_channels, height, width, generator=made)


def own_picture(model: Any, z: Tensor) -> np.ndarray:
    with torch.no_grad():
        pixels = model.decode(z).sample[0].permute(1, 2, 0)
    return ((pixels / 2 + 0.5).clamp(0, 1) * 255).round().numpy()


def decode(model: Any, *inputs: Path, out: Path, space: Any = "raw", **fields: Any) -> list[Event]:
    events: list[Event] = []
    vae = str(model.folder)
    job = Job(
        "decode", tuple(map(str, inputs)), output=str(out), vae=vae, latents_space=space, dtype="float32", **fields
    )
    run_job(job, events.append)
    return events


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


# -- bad input ---------------------------------------------------------------------------------------------------------
class Harm:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harmed",)


BAD: dict[str, tuple[Callable[[Path, Tensor], object], str]] = {
    "channels.npy": (lambda path, z: np.save(path, torch.cat([z, z], 1)), "this VAE has 4 channels, the file 1 or 8"),
    "flat.npy": (lambda path, z: np.save(path, z.flatten()), "not [120]"),
    "empty.npy": (lambda path, z: np.save(path, z[:0]), "empty"),
    "tokens.npy": (lambda path, z: np.save(path, z[0].flatten(1).T[None]), "pass the picture's size with --size"),
    "nan.npy": (lambda path, z: np.save(path, z / 0 * 0), "are not finite"),
    "two.npz": (lambda path, z: numpys(path, a=z, b=z), "Pass --key; it has a [1, 4, 6, 5], b"),
    "numbers.npy": (lambda path, z: np.save(path, (z * 9).long()), "it has none"),
    "objects.npy": (lambda path, z: np.save(path, np.array([{"a": z}], object)), "allow_pickle"),
    "module.pt": (lambda path, z: torch.save(torch.nn.Linear(2, 2), path), "objects of Python's"),
    "harm.pt": (lambda path, z: path.write_bytes(pickle.dumps(Harm())), "objects of Python's"),
    "list.pt": (lambda path, z: torch.save([z], path), "a list instead of a tensor"),
    "cut.safetensors": (lambda path, z: path.write_bytes(b"\x40\0\0\0\0\0\0\0{"), "cannot read latents"),
    "cut.npz": (lambda path, z: path.write_bytes(b"PK\x03\x04"), "cannot read latents"),
    "cut.npy": (lambda path, z: path.write_bytes(b"\x93NUMPY\x01"), "cannot read latents"),
    "cut.pt": (lambda path, z: path.write_bytes(b"PK\x03\x04"), "cannot read latents"),
    "nothing.latent": (lambda path, z: path.write_bytes(b""), "cannot read latents"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_decoded_fails_alone(
    name: str, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write, message = BAD[name]
    write(tmp_path / name, latents_of(model))
    WRITERS["comfy.latent"](tmp_path / "good.latent", latents_of(model))
    events = decode(model, tmp_path / name, tmp_path / "good.latent", out=tmp_path / "out")
    (failed,) = [event for event in events if isinstance(event, ItemFailed)]
    assert message in failed.error
    assert name in failed.error
    assert "\n" not in failed.error
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["good.png"]
    assert not (tmp_path / "harmed").exists()


def test_tokens_of_another_size(model: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", latents_of(model)[0].flatten(1).T.numpy())
    (failed,) = [e for e in decode(model, tmp_path / "a.npy", out=tmp_path, size=(64, 64)) if isinstance(e, ItemFailed)]
    assert "has 30 tokens, a picture of --size has" in failed.error


@pytest.mark.parametrize(
    "fields", [{"latents_space": "raw"}, {"vae": "x", "latents_key": "a"}, {"size": (8, 8)}, {"latents_space": "odd"}]
)
def test_what_is_not_said_is_not_guessed(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Job("decode", ("a.npy",), **fields)


def test_without_a_space_the_line_says_what_to_do(model: Any, tmp_path: Path) -> None:
    WRITERS["comfy.latent"](tmp_path / "a.latent", latents_of(model))
    (failed,) = [e for e in decode(model, tmp_path / "a.latent", out=tmp_path, space=None) if isinstance(e, ItemFailed)]
    assert "pass --vae and --space" in failed.error


def test_a_dry_run_names_all_outputs(model: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", torch.cat([latents_of(model), latents_of(model)]).numpy())
    events = decode(model, tmp_path / "a.npy", out=tmp_path / "out", dry_run=True)
    assert [e.output.name for e in events if isinstance(e, ItemPlanned)] == ["a-0000.png", "a-0001.png"]
    assert not (tmp_path / "out").exists()
