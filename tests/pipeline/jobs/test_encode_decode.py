"""Encode and decode through files, with a stand-in VAE that reproduces its test pictures exactly."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tvae.pipeline.jobs import Notice
from tvae.pipeline.latents import open_latents

Run = Callable[..., Any]


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"))


@pytest.mark.parametrize(("width", "height"), [(32, 16), (1, 1), (3, 5), (37, 21)])
def test_an_image_comes_back_with_its_size(run: Run, picture: Run, tmp_path: Path, width: int, height: int) -> None:
    source = picture(width=width, height=height)
    original = pixels(source)
    done, _ = run("encode", source, output=tmp_path / "lat")
    assert (done.done, done.failed) == (1, 0)
    source.unlink()
    done, _ = run("decode", tmp_path / "lat" / "a.png.safetensors", output=tmp_path / "out")
    assert (done.done, done.failed) == (1, 0)
    assert (pixels(tmp_path / "out" / "a.png") == original).all()


def test_irregular_timestamps_survive(run: Run, clip: Run, shown: Run, tmp_path: Path) -> None:
    source = clip("c.mkv", times=(0, 33, 133, 300, 333, 900))
    expected = shown(source)
    run("encode", source, output=tmp_path / "lat")
    reader = open_latents(tmp_path / "lat" / "c.mkv.latents")
    assert [pts for part in reader for pts in part.pts] == [0, 33, 133, 300, 333, 900]
    assert reader.meta.time_base == Fraction(1, 1000)
    source.unlink()
    done, _ = run("decode", tmp_path / "lat", output=tmp_path / "out", crf=0)
    assert done.done == 1
    assert shown(tmp_path / "out" / "c.mkv.mp4") == [(time, pytest.approx(level, abs=2)) for time, level in expected]


def test_a_long_clip_is_kept_in_parts(run: Run, clip: Run, shown: Run, tmp_path: Path) -> None:
    source = clip(times=tuple(range(0, 40 * 40, 40)))
    run("encode", source, output=tmp_path / "lat")
    reader = open_latents(tmp_path / "lat" / "c.mkv.latents")
    assert [part.tensors["latents"].shape[1] for part in reader] == [16, 16, 8]
    run("decode", tmp_path / "lat", output=tmp_path / "out", crf=0)
    assert shown(tmp_path / "out" / "c.mkv.mp4") == [
        (time, pytest.approx(level, abs=2)) for time, level in shown(source)
    ]


@pytest.mark.parametrize(("frames", "latent_frames", "repeated"), [(1, 1, 0), (5, 2, 0), (6, 3, 3), (9, 3, 0)])
def test_a_video_vae_gets_the_whole_clip(
    run: Run, clip: Run, shown: Run, stand_in: Run, tmp_path: Path, frames: int, latent_frames: int, repeated: int
) -> None:
    source = clip("c.mkv", times=tuple(range(0, 40 * frames, 40)))
    model = stand_in(temporal_factor=4)
    run("encode", source, output=tmp_path / "lat", model=model)
    assert model.shapes == [(1, 3, 1 + 4 * (latent_frames - 1), 16, 32)]
    (part,) = open_latents(tmp_path / "lat" / "c.mkv.latents")
    assert part.tensors["latents"].shape == (3, latent_frames, 2, 4)
    assert part.repeated == repeated
    run("decode", tmp_path / "lat", output=tmp_path / "out", model=model)
    assert [time for time, _ in shown(tmp_path / "out" / "c.mkv.mp4")] == [time for time, _ in shown(source)]


def test_a_video_vae_takes_an_image_as_one_frame(run: Run, picture: Run, stand_in: Run, tmp_path: Path) -> None:
    source, model = picture(), stand_in(temporal_factor=4)
    run("encode", source, output=tmp_path / "lat", model=model)
    assert model.shapes == [(1, 3, 1, 16, 32)]
    run("decode", tmp_path / "lat", output=tmp_path / "out", model=model)
    assert (pixels(tmp_path / "out" / "a.png") == pixels(source)).all()


@pytest.mark.parametrize("posterior", ["mean", "moments", "sample"])
@pytest.mark.parametrize("space", ["raw", "model"])
def test_what_is_kept_of_the_posterior(
    run: Run, picture: Run, stand_in: Run, tmp_path: Path, posterior: str, space: str
) -> None:
    source = picture()
    run("encode", source, output=tmp_path / "lat", posterior=posterior, space=space, seed=7)
    reader = open_latents(tmp_path / "lat" / "a.png.safetensors")
    (part,) = reader
    x = torch.from_numpy(pixels(source).copy()).permute(2, 0, 1)[None] / 127.5 - 1
    gaussian = stand_in().encode(x)
    to_space = (lambda z: (z - 0.25) * 0.5) if space == "model" else (lambda z: z)
    if posterior == "sample":
        expected = {"latents": to_space(gaussian.sample(torch.Generator().manual_seed(7)))}
    elif posterior == "mean":
        expected = {"latents": to_space(gaussian.mean)}
    else:
        shift = 2 * np.log(0.5) if space == "model" else 0.0
        expected = {"mean": to_space(gaussian.mean), "logvar": gaussian.logvar + shift}
    assert part.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(part.tensors[name], tensor[0])
    assert (reader.meta.space.name, reader.meta.posterior.kind) == (space, posterior)
    run("decode", tmp_path / "lat", output=tmp_path / "out")
    assert np.abs(pixels(tmp_path / "out" / "a.png").astype(int) - pixels(source)).max() <= (
        6 if posterior == "sample" else 0
    )


def test_a_sample_depends_on_the_seed_not_on_the_order(run: Run, picture: Run, tmp_path: Path) -> None:
    first, second = picture("1.png", seed=1), picture("2.png", seed=2)
    latents = []
    for name, inputs, seed in (("x", (first, second), 3), ("y", (second, first), 3), ("z", (first, second), 4)):
        run("encode", *inputs, output=tmp_path / name, posterior="sample", seed=seed)
        (part,) = open_latents(tmp_path / name / "1.png.safetensors")
        latents.append(part.tensors["latents"])
    assert torch.equal(latents[0], latents[1])
    assert not torch.equal(latents[0], latents[2])


def test_only_what_is_up_to_date_is_skipped(run: Run, picture: Run, clip: Run, tmp_path: Path) -> None:
    inputs = (picture(), clip())
    kinds = lambda events: [type(event).__name__ for event in events if hasattr(event, "output")]  # noqa: E731
    encode = lambda **fields: run("encode", *inputs, output=tmp_path / "lat", **fields)  # noqa: E731
    assert encode()[0].done == 2
    assert (encode()[0].skipped, encode(existing="keep")[0].skipped) == (2, 2)
    assert encode(existing="overwrite")[0].done == 2
    assert encode(align="crop")[0].done == 2
    assert encode(align="crop", existing="keep", seed=1)[0].skipped == 2
    picture(seed=5)
    done, events = encode(align="crop")
    assert (done.done, done.skipped) == (1, 1)
    assert sorted(kinds(events)) == ["ItemDone", "ItemSkipped", "ItemStarted"]


def test_decoded_names(run: Run, picture: Run, tmp_path: Path) -> None:
    lat, out = tmp_path / "lat", tmp_path / "out"
    run("encode", picture("a.png"), output=lat / "renamed.safetensors")
    run("decode", lat, output=out)
    assert [path.name for path in out.iterdir()] == ["a.png"]
    shutil.copy(lat / "renamed.safetensors", lat / "again.safetensors")
    run("decode", lat, output=out)
    assert {path.name for path in out.iterdir()} == {"a.png", "renamed.png", "again.png"}


def test_a_name_out_of_a_file_leads_nowhere(run: Run, picture: Run, tmp_path: Path) -> None:
    lat = tmp_path / "lat" / "a.png.safetensors"
    run("encode", picture(), output=tmp_path / "lat")
    data = lat.read_bytes().replace(b'"checksum"', b'"whatever"')
    assert data.count(b"a.png") == 1
    for index, name in enumerate((b"../xy", b"C:xyz", b"/a.pn")):
        lat.write_bytes(data.replace(b"a.png", name))
        out = tmp_path / str(index) / "deep"
        assert run("decode", lat, output=out)[0].done == 1
        assert [path.name for path in out.parent.rglob("*.*")] == ["a.png"]


@pytest.mark.parametrize("operation", ["encode", "roundtrip"])
@pytest.mark.parametrize(
    ("align", "told"),
    [("pad", "padded to 40x24 by repeating its right and bottom edge"), ("crop", "cropped to 32x16")],
)
def test_padding_and_cropping_is_told(
    operation: str, align: str, told: str, run: Run, picture: Run, clip: Run, tmp_path: Path
) -> None:
    inputs = picture("odd.png", 33, 18), picture("even.png", 32, 16), clip("odd.mkv", width=33, height=18)
    done, events = run(operation, *inputs, output=tmp_path / "out", align=align)
    assert done.done == 3
    lines = [event.to_json() for event in events if isinstance(event, Notice) and "multiples of 8" in event.message]
    assert sorted((line["type"], line["index"], Path(line["input"]).name) for line in lines) == [
        ("warning", 0, "odd.png"),
        ("warning", 2, "odd.mkv"),
    ]
    assert all(line["message"].startswith("33x18, but this VAE takes") and told in line["message"] for line in lines)


def test_odd_pictures_are_told_about(run: Run, tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8, 4), 128, np.uint8)).save(tmp_path / "alpha.png")
    Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000).save(tmp_path / "deep.png")
    Image.new("P", (8, 8), 3).save(tmp_path / "palette.png")
    Image.new("L", (8, 8), 77).save(tmp_path / "grey.png")
    done, events = run("encode", tmp_path, output=tmp_path / "lat")
    assert (done.done, done.failed) == (4, 0)
    assert {event.input.name for event in events if isinstance(event, Notice)} == {"deep.png"}
    _, events = run("encode", tmp_path, output=tmp_path / "colours", alpha="drop")
    assert {event.input.name for event in events if isinstance(event, Notice)} == {"alpha.png", "deep.png"}
