"""Functions for scripts do what the commands do, and give what files hold."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any, get_type_hints

import av
import numpy as np
import pytest
import torch
from foreign_files import WRITERS, latents_of, saved_model
from PIL import Image
from safetensors.torch import load_file
from tiny_vaes import TINY

import tvae.pipeline
from tvae.pipeline import TiledVAE, decode, encode, load_latents, load_vae
from tvae.pipeline.doors.options import Options, checked
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.jobs import Job, RunDone


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return saved_model(tmp_path_factory.mktemp("vae"))


def photo(path: Path, seed: int = 0) -> Path:
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (24, 20, 3), dtype=np.uint8)).save(path)
    return path


def pixels(path: Path) -> torch.Tensor:
    """[1, 3, H, W] in [-1, 1]."""
    return torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)[None] / 127.5 - 1


@pytest.mark.long
def test_there_and_back(model: Any, tmp_path: Path) -> None:
    sources = [photo(tmp_path / f"{n}.png", n) for n in range(3)]
    outputs = encode(reversed(sources), tmp_path / "lat", vae=model.folder, dtype="float32")
    assert outputs == [tmp_path / "lat" / f"{n}.png.safetensors" for n in (2, 1, 0)]
    with torch.no_grad():
        own = model.encode(pixels(sources[1])).latent_dist.mean
    found = load_latents(outputs[1])
    assert torch.allclose(found.tensor, own[0], atol=1e-5)
    assert (found.logvar, found.pts, found.meta.source.name) == (None, (), "1.png")
    with torch.no_grad():
        shown = load_vae(model.folder).decode(own).sample
        assert torch.allclose(shown, model.decode(own).sample, atol=1e-5)
    (picture,) = decode(outputs[1], tmp_path / "1.png.png", dtype="float32")
    wanted = ((shown[0].permute(1, 2, 0) / 2 + 0.5).clamp(0, 1) * 255).round().numpy()
    assert np.abs(np.asarray(Image.open(picture)).astype(float) - wanted).max() <= 1


def test_the_whole_posterior(model: Any, tmp_path: Path) -> None:
    (path,) = encode(photo(tmp_path / "a.png"), tmp_path, vae=str(model.folder), posterior="moments")
    found, stored = load_latents(path), load_file(path)
    assert found.logvar is not None
    assert torch.equal(found.tensor, stored["mean"])
    assert torch.equal(found.logvar, stored["logvar"])


def test_parts_of_a_clip_are_joined(model: Any, tmp_path: Path) -> None:
    with av.open(str(tmp_path / "c.mkv"), "w") as container:
        stream = container.add_stream("ffv1", rate=25, width=16, height=8, pix_fmt="yuv420p")
        for level in range(21):
            grey = np.full((8, 16, 3), level * 10, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey)))
        container.mux(stream.encode(None))
    (folder,) = encode(tmp_path / "c.mkv", tmp_path / "out", vae=model.folder)
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 1
    found = load_latents(folder)
    assert torch.equal(found.tensor, torch.cat([load_file(file)["latents"] for file in files], 1))
    assert len(found.pts) == found.tensor.shape[1] == 21


def test_results_that_are_there_are_among_the_outputs(model: Any, tmp_path: Path) -> None:
    source, events = photo(tmp_path / "a.png"), list[Any]()
    first = encode(source, tmp_path / "out", vae=model.folder)
    assert encode(source, tmp_path / "out", vae=model.folder, on_event=events.append) == first
    (last,) = [event for event in events if isinstance(event, RunDone)]
    assert (last.done, last.skipped) == (0, 1)


def test_what_fails_is_raised_when_the_others_are_done(model: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"bad\.png"):
        encode([tmp_path / "bad.png", photo(tmp_path / "good.png")], tmp_path / "out", vae=model.folder)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["good.png.safetensors"]


def test_latents_of_other_programs(model: Any, tmp_path: Path) -> None:
    WRITERS["comfy.latent"](tmp_path / "a.latent", latents_of(model))
    (path,) = decode(tmp_path / "a.latent", tmp_path / "out", vae=model.folder, latents_space="raw")
    assert path == tmp_path / "out" / "a.png"
    with pytest.raises(InputError, match="not latents of tvae"):
        load_latents(tmp_path / "a.latent")


@pytest.mark.parametrize("options", [{"wrong": 1}, {"posterior": "odd"}, {"operation": "odd"}, {"vae": "nowhere"}])
def test_wrong_requests(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        encode(photo(tmp_path / "a.png"), tmp_path / "out", **options)


def test_a_vae_as_it_is_wanted(tmp_path: Path) -> None:
    TINY["AutoencoderTiny"].build(1).save_pretrained(tmp_path)  # type: ignore[operator]
    found = load_vae(tmp_path, dtype=torch.bfloat16, preset="cpu", strip=4)
    assert isinstance(found, TiledVAE)
    assert next(found.parameters()).dtype == torch.bfloat16
    assert "strip=4" in repr(found)
    assert load_vae("builtin").vae.config.latent_channels == 16
    with pytest.raises(UsageError, match="no VAE 'nowhere'"):
        load_vae("nowhere")


def test_every_public_name_is_there() -> None:
    for name in tvae.pipeline.__all__:
        assert getattr(tvae.pipeline, name).__doc__
    with pytest.raises(AttributeError, match="nothing"):
        tvae.pipeline.nothing  # noqa: B018


def test_options_are_the_fields_of_a_job() -> None:
    apart = {"operation", "inputs", "output", "listed", "cache", "claim", "exact", "sharers", "recorded"}
    wider = {"vae", "preset", "spill", "fps"}
    ours, of_job = get_type_hints(Options), get_type_hints(Job)
    assert {*ours} - {"on_event"} == {*of_job} - apart
    assert {name for name, kind in ours.items() if name != "on_event" and kind != of_job[name]} == wider


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"strp": 3}, "encode() has no option 'strp'; it has align, "),
        ({"strip": "3"}, "encode(strip='3'): a whole number or None is wanted"),
        ({"strip": True}, "encode(strip=True): a whole number or None is wanted"),
        ({"vram": 8 << 30}, "encode(vram=8589934592): a text or None is wanted"),
        ({"size": 512}, "encode(size=512): tuple[int, int] or None is wanted"),
        ({"size": (1, 2, 3)}, "encode(size=(1, 2, 3)): tuple[int, int] or None is wanted"),
        ({"vae": 5}, "encode(vae=5): a text or None is wanted"),
        ({"seed": None}, "encode(seed=None): a whole number is wanted"),
        ({"fit": 3}, "encode(fit=3): 'contain' or "),
        ({"fit": "shrink"}, "fit 'shrink' is not one of"),
        ({"crf": "14"}, "encode(crf='14'): a number or None is wanted"),
        ({"fps": float("nan")}, "encode(fps=nan): a finite number is wanted"),
        ({"fps": np.float32("inf")}, "encode(fps="),
        ({"crf": float("nan")}, "encode(crf=nan): a finite number is wanted"),
        ({"on_event": 3}, "encode(on_event=3): "),
        (
            {"encoder_options": {"crf": "3"}},
            "encode(encoder_options={'crf': '3'}): tuple[tuple[str, str], ...] is wanted",
        ),
    ],
    ids=str,
)
def test_an_option_of_another_type_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        encode("a.png", **options)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("inputs", [None, 5, [5], [None], {"a.png": 1}.values()], ids=str)
def test_what_are_no_names_is_refused(inputs: Any) -> None:
    with pytest.raises(UsageError, match="wants the names of files, not"):
        encode(inputs)


def test_lists_and_numbers_of_numpy_are_options(model: Any, tmp_path: Path) -> None:
    made = photo(tmp_path / "a.png")
    (found,) = encode(made, tmp_path / "found", vae=model.folder, size=[16, 8], strip=np.int64(1))
    (wanted,) = encode(made, tmp_path / "wanted", vae=model.folder, size=(16, 8), strip=1)
    assert torch.equal(load_latents(found).tensor, load_latents(wanted).tensor)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (24, Fraction(24)),
        (np.int64(24), Fraction(24)),
        (np.float32(12.5), Fraction(25, 2)),
        (np.float64(23.976), Fraction(2997, 125)),
        (Fraction(24000, 1001), Fraction(24000, 1001)),
    ],
    ids=repr,
)
def test_rates_are_numbers_of_any_kind(given: Any, wanted: Fraction) -> None:
    """A whole number was an AttributeError where timestamps are made, one of NumPy's a TypeError."""
    rate = checked("decode", {"fps": given})["fps"]
    assert (type(rate), rate) == (Fraction, wanted)


@pytest.mark.parametrize(("given", "wanted"), [(np.int32(20), 20), (Fraction(41, 2), 20.5), (np.float32(20.5), 20.5)])
def test_other_numbers_are_pythons_own(given: Any, wanted: float) -> None:
    crf = checked("decode", {"crf": given})["crf"]
    assert (type(crf), crf) == (type(wanted), wanted)
    options = checked(
        "encode", {"size": [*np.array([16, 8])], "recursive": np.bool_(True), "encoder_options": [["a", "b"]]}
    )
    assert json.loads(json.dumps(options)) == {"size": [16, 8], "recursive": True, "encoder_options": [["a", "b"]]}


def test_a_rate_that_is_a_whole_number(model: Any, tmp_path: Path) -> None:
    with av.open(str(tmp_path / "c.mkv"), "w") as container:
        stream = container.add_stream("ffv1", rate=25, width=16, height=8, pix_fmt="yuv420p")
        for level in range(3):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((8, 16, 3), level * 90, np.uint8))))
        container.mux(stream.encode(None))
    (folder,) = encode(tmp_path / "c.mkv", tmp_path / "lat", vae=model.folder)
    (clip,) = decode(folder, tmp_path / "clip.mp4", vae=model.folder, fps=12)
    with av.open(str(clip)) as container:
        assert container.streams.video[0].average_rate == 12
