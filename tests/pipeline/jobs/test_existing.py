"""Pictures and clips that are there already: skipped, made anew, or left alone because they are somebody else's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Event, ItemFailed, ItemPlanned, ItemSkipped
from tvae.pipeline.latents import open_latents

Run = Callable[..., Any]

LATER = 2_000_000_000


def mark(path: Path) -> str:
    """The fingerprint by Pillow or PyAV alone."""
    if path.suffix == ".png":
        with Image.open(path) as image:
            return image.text["tvae-fingerprint"]  # type: ignore[attr-defined]
    with av.open(str(path)) as container:
        return container.metadata["comment"].removeprefix("tvae-fingerprint=")


def seen_by(shown: Run) -> Callable[[Path], Any]:
    """What a picture or film shows. Not its bytes: an encoder may divide its work otherwise."""

    def content(path: Path) -> Any:
        return np.asarray(Image.open(path)).tolist() if path.suffix == ".png" else shown(path)

    return content


def outcome(result: tuple[Any, list[Event]]) -> str:
    done, events = result
    (word,) = (name for name in ("done", "skipped", "failed") if getattr(done, name))
    return next((event.reason for event in events if isinstance(event, ItemSkipped)), word)


@pytest.fixture(params=["a.png", "c.mkv"])
def source(request: pytest.FixtureRequest, picture: Run, clip: Run) -> Path:
    return picture(request.param) if request.param.endswith(".png") else clip(request.param)


@pytest.fixture(params=["decode", "roundtrip"])
def again(request: pytest.FixtureRequest, source: Path, run: Run, tmp_path: Path) -> Callable[..., tuple[str, Path]]:
    """Makes the source's picture; gives what became of it and where it is. Latents are made once."""
    latents = tmp_path / "lat"
    if request.param == "decode":
        run("encode", source, output=latents)
    origin = next(latents.iterdir()) if request.param == "decode" else source
    output = tmp_path / "out" / ("a.png" if source.suffix == ".png" else "c.mkv.mp4")

    def again(**fields: Any) -> tuple[str, Path]:
        return outcome(run(request.param, origin, output=tmp_path / "out", **fields)), output

    return again


def test_the_same_again_is_skipped(again: Run, stand_in: Run, source: Path) -> None:
    made, output = again()
    assert made == "done"
    assert len(mark(output)) == 64
    before = output.read_bytes()
    os.utime(output, (1, 1))  # its own age says nothing
    assert again()[0] == "done already"
    assert again(strip=4, device="cpu", allow_whole=True)[0] == "done already"
    assert again(model=stand_in(id="the same under another name"))[0] == "done already"
    if source.suffix == ".png":  # what has a meaning for clips only
        of_clips: dict[str, Any] = {"crf": 30, "codec": "libx264", "fps": Fraction(5)}
        if output.suffix == ".safetensors":
            assert again(audio="none", **of_clips)[0] == "done already"
        else:
            assert again(audio="none")[0] == "done already"
            with pytest.raises(UsageError, match="for videos"):
                again(**of_clips)
    assert output.read_bytes() == before
    assert os.stat(output).st_mtime == 1


def test_another_type_is_made_anew(again: Run, stand_in: Run) -> None:
    _, output = again()
    first, model = mark(output), stand_in()
    model.dtype = torch.bfloat16
    assert again(model=model)[0] == "done"
    assert mark(output) != first
    assert again(model=model)[0] == "done already"


def test_options_of_the_file(again: Run, source: Path) -> None:
    seen = {mark(again()[1])}
    changes: list[dict[str, Any]] = [{"encoder_options": (("compress_level", "1"),)}]
    if source.suffix != ".png":
        changes = [
            {"crf": 30},
            {"codec": "mpeg4"},
            {"pix_fmt": "yuv444p"},
            {"encoder_options": (("preset", "ultrafast"),)},
            {"fps": Fraction(5)},
            {"audio": "none"},
            {"color": "bt601"},
        ]
    for fields in changes:
        made, output = again(**fields)
        assert made == "done", fields
        assert again(**fields)[0] == "done already"
        seen.add(mark(output))
    assert len(seen) == 1 + len(changes)


def test_what_carries_no_fingerprint_is_left_alone(again: Run, source: Path, shown: Run) -> None:
    _, output = again()
    ours, content_of = output.read_bytes(), seen_by(shown)
    looks = content_of(output)
    if source.suffix == ".png":
        Image.open(output).convert("L").save(output)
    else:
        with av.open(str(source)) as old, av.open(str(output), "w") as new:
            stream = new.add_stream("libx264", rate=25, width=32, height=16)
            for frame in old.decode(video=0):
                new.mux(stream.encode(frame))
            new.mux(stream.encode(None))
    foreign = output.read_bytes()
    for content in (foreign, b"", b"notes", ours[:100]):
        output.write_bytes(content)
        for when in (1, LATER):
            os.utime(output, (when, when))
            reason = again()[0]
            assert "does not say that tvae made it" in reason
            assert "--overwrite" in reason
            assert output.read_bytes() == content
        assert again(existing="keep")[0] == "exists"
    assert again(existing="overwrite")[0] == "done"
    assert content_of(output) == looks


def test_flags(again: Run, run: Run, stand_in: Run, source: Path, tmp_path: Path) -> None:
    _, output = again()
    before = output.read_bytes()
    changed = {"encoder_options": (("compress_level", "1"),)} if source.suffix == ".png" else {"crf": 40}
    assert again(existing="keep", **changed)[0] == "exists"
    _, events = run("roundtrip", source, output=output.parent, dry_run=True, **changed)
    assert [event.exists for event in events if isinstance(event, ItemPlanned)] == [True]
    assert output.read_bytes() == before
    os.utime(output, (1, 1))
    assert again(existing="overwrite")[0] == "done"
    assert os.stat(output).st_mtime > 1
    assert again(**changed)[0] == "done"
    assert output.read_bytes() != before


def test_a_redo_that_fails_leaves_the_old_one(run: Run, picture: Run, stand_in: Run, tmp_path: Path) -> None:
    class Broken(type(stand_in())):  # type: ignore[misc]
        def decode(self, z: torch.Tensor) -> torch.Tensor:
            return super().decode(z) * float("nan")

    source, output = picture(), tmp_path / "out" / "a.png"
    run("roundtrip", source, output=output)
    before = output.read_bytes()
    model = Broken(replace(stand_in().info, weights_sha256="b" * 64))
    assert outcome(run("roundtrip", source, output=output, model=model)) == "failed"
    assert [path.name for path in output.parent.iterdir()] == ["a.png"]
    assert output.read_bytes() == before


@pytest.mark.parametrize("change", ["weights_sha256", "config_hash", "class_name"])
def test_another_vae_reconstructs_anew(run: Run, picture: Run, stand_in: Run, tmp_path: Path, change: str) -> None:
    source, other = picture(), stand_in(**{change: "b" * 64})
    results = [
        outcome(run("roundtrip", source, output=tmp_path / "o.png", model=model))
        for model in (stand_in(), other, other, stand_in())
    ]
    assert results == ["done", "done", "done already", "done"]


def test_framing_and_source_of_a_reconstruction(run: Run, picture: Run, tmp_path: Path) -> None:
    source, out = picture(), tmp_path / "out"
    for fields in ({}, {"size": (24, 24)}, {"size": (24, 24), "fit": "cover"}, {"align": "crop"}):
        assert outcome(run("roundtrip", source, output=out, **fields)) == "done", fields
        assert outcome(run("roundtrip", source, output=out, **fields)) == "done already"
    # what roundtrip has no use for
    assert outcome(run("roundtrip", source, output=out, align="crop", posterior="sample", seed=3, fit="cover")) == (
        "done already"
    )
    os.utime(source, (LATER, LATER))
    assert outcome(run("roundtrip", source, output=out, align="crop")) == "done"
    first = np.asarray(Image.open(out / "a.png"))
    picture(seed=5)
    assert outcome(run("roundtrip", source, output=out, align="crop")) == "done"
    assert (np.asarray(Image.open(out / "a.png")) != first).any()


def test_other_latents_are_decoded_anew(run: Run, picture: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for fields, expected in (({}, "done"), ({"space": "model"}, "done"), ({"posterior": "sample"}, "done")):
        run("encode", picture(), output=tmp_path / "lat", **fields)
        assert outcome(run("decode", tmp_path / "lat", output=out)) == expected
        assert outcome(run("decode", tmp_path / "lat", output=out)) == "done already"


def test_latents_of_other_options_in_files_alike(run: Run, picture: Run, tmp_path: Path) -> None:
    source, place, sizes = picture(), tmp_path / "lat" / "a.png.safetensors", set()
    for align in ("pad", "crop"):
        run("encode", source, output=place, align=align)
        os.utime(place, (LATER, LATER))
        sizes.add(place.stat().st_size)
        assert outcome(run("decode", place, output=tmp_path / "out")) == "done"
    assert len(sizes) == 1


def test_latents_that_another_program_changed(run: Run, source: Path, tmp_path: Path) -> None:
    """They keep what they say about themselves."""
    run("encode", source, output=tmp_path / "lat")
    (place,) = (tmp_path / "lat").iterdir()
    assert outcome(run("decode", place, output=tmp_path / "out")) == "done"
    before = open_latents(place).meta
    file = place if place.is_file() else place / "000000.safetensors"
    with safe_open(file, "pt") as old:
        metadata, latents = old.metadata(), old.get_tensor("latents")
    del metadata["checksum"]
    save_file({"latents": latents / 2}, file, metadata)
    if place.is_dir():
        index = json.loads((place / "index.json").read_text())
        del index["checksum"], index["parts"][0]["checksum"]
        index["parts"][0]["bytes"] = file.stat().st_size
        (place / "index.json").write_text(json.dumps(index))
    os.utime(file, (LATER, LATER))
    assert open_latents(place).meta == before
    assert outcome(run("decode", place, output=tmp_path / "out")) == "done"
    assert outcome(run("decode", place, output=tmp_path / "out")) == "done already"


def test_a_part_is_not_the_clip(run: Run, clip: Run, shown: Run, tmp_path: Path) -> None:
    run("encode", clip(times=tuple(range(0, 20 * 40, 40))), output=tmp_path / "lat")
    folder, output = tmp_path / "lat" / "c.mkv.latents", tmp_path / "out.mp4"
    for origin, frames in ((folder, 20), (folder / "000001.safetensors", 4), (folder, 20)):
        assert outcome(run("decode", origin, output=output)) == "done"
        assert len(shown(output)) == frames


def test_another_vae_does_not_decode(run: Run, picture: Run, stand_in: Run, tmp_path: Path) -> None:
    run("encode", picture(), output=tmp_path / "lat")
    run("decode", tmp_path / "lat", output=tmp_path / "out")
    _, events = run("decode", tmp_path / "lat", output=tmp_path / "out", model=stand_in(weights_sha256="b" * 64))
    (failed,) = (event for event in events if isinstance(event, ItemFailed))
    assert "another VAE" in failed.error


@pytest.mark.parametrize("victim", ["index.json", "000001.safetensors", "both"])
def test_damaged_latents_are_made_again(run: Run, clip: Run, tmp_path: Path, victim: str) -> None:
    """They were refused for as long as nobody deleted them."""
    source, out = clip(times=tuple(range(0, 40 * 40, 40))), tmp_path / "out"
    run("encode", source, output=out)
    folder = out / "c.mkv.latents"
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in ("index.json", "000001.safetensors"):
        if victim in (name, "both"):
            (folder / name).write_bytes(b"\xff" * 100)
    done, _ = run("encode", source, output=out)
    assert (done.done, done.failed) == (1, 0)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
    for path in folder.iterdir():
        path.write_bytes(b"\xff" * 100)
    done, _ = run("encode", source, output=out)
    assert (done.done, done.failed) == (0, 1), "nothing there is known to be of tvae"


def test_a_checkpoint_beside_complete_latents_is_removed(run: Run, clip: Run, tmp_path: Path) -> None:
    """Of a run that was killed right after the index was written."""
    source, out = clip(), tmp_path / "out"
    run("encode", source, output=out)
    left = out / "c.mkv.latents" / ".tvae-state.safetensors"
    left.write_bytes(b"x")
    done, _ = run("encode", source, output=out)
    assert done.skipped == 1
    assert not left.exists()
