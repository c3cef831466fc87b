"""``tvae compare``: what it says of two results is what NumPy finds, and what it ends with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from clips import write_clip
from PIL import Image
from safetensors.numpy import load_file, save_file
from typer.testing import Result

Tvae = Callable[..., Result]


def told(result: Result) -> list[dict[str, Any]]:
    return [*map(json.loads, result.stdout.splitlines())]


def distance(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.linalg.norm((second.astype(float) - first).ravel()) / np.linalg.norm(first.astype(float).ravel()))


def write_noisy(clip: Path, path: Path) -> None:
    """The same frames, of which each is darker than the one before."""
    with av.open(str(clip)) as read, av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 16, 16, "yuv444p"
        for number, frame in enumerate(read.decode(video=0)):
            darker = (frame.to_ndarray(format="rgb24") * (0.9 - 0.1 * number)).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(darker, format="rgb24")))
        container.mux(stream.encode())


@pytest.fixture
def other_photo(photo: Path) -> Path:
    values = np.asarray(Image.open(photo)).astype(int)
    path = photo.with_name("other.png")
    Image.fromarray((values + np.arange(30)[:, None]).clip(0, 255).astype(np.uint8)).save(path)
    return path


def test_images(tvae: Tvae, photo: Path, other_photo: Path) -> None:
    x, y = (np.asarray(Image.open(path)).astype(float) for path in (photo, other_photo))
    (line,) = told(tvae("compare", photo, other_photo, "--json"))
    assert line["relative_l2"] == pytest.approx(distance(x, y))
    assert line["largest"] == np.abs(x - y).max()
    assert line["psnr"] == pytest.approx(10 * np.log10(255**2 / np.square(x - y).mean()), abs=1e-4)
    assert (line["type"], line["kind"], line["equal"], line["frames"]) == ("compared", "image", False, 1)
    assert (line["first"], line["second"]) == (str(photo), str(other_photo))
    result = tvae("compare", photo, other_photo)
    assert (result.exit_code, result.stdout.count("\n")) == (0, 1)
    assert f"relative L2 {line['relative_l2']:.3g}, largest difference {line['largest']:.3g}" in result.stdout
    assert tvae("compare", photo, photo).stdout == f"{photo}: equal\n"
    assert told(tvae("compare", photo, photo, "--json"))[0]["psnr"] is None


def test_videos_frame_by_frame(tvae: Tvae, tmp_path: Path, photo: Path) -> None:
    first, second = tmp_path / "a.mkv", tmp_path / "b.mkv"
    write_clip(first, 5, sound=True)
    write_noisy(first, second)
    (line,) = told(tvae("compare", first, second, "--json"))
    clips = []
    for path in (first, second):
        with av.open(str(path)) as container:
            clips.append(np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]))
    assert (line["kind"], line["frames"]) == ("video", 5)
    assert line["psnr"] == pytest.approx(
        10 * np.log10(255**2 / np.square(clips[0].astype(float) - clips[1]).mean()), abs=0.2
    )
    write_clip(tmp_path / "short.mkv", 3, sound=False)
    for pair in ((first, tmp_path / "short.mkv"), (tmp_path / "short.mkv", first)):
        result = tvae("compare", *pair)
        assert result.exit_code == 3
        assert f"{tmp_path / 'short.mkv'} has 3 frames, and the other has more" in result.stderr


def test_latents_of_images_and_clips(tvae: Tvae, tmp_path: Path, photo: Path) -> None:
    write_clip(tmp_path / "clip.mkv", 6, sound=True)
    latents = tmp_path / "latents"
    assert tvae("encode", photo, tmp_path / "clip.mkv", "-o", latents).exit_code == 0
    image, clip = latents / "photo.png.safetensors", latents / "clip.mkv.latents"
    noisy = tmp_path / "noisy.npz"
    values = load_file(image)["latents"]
    np.savez(noisy, latents=values + np.float32(0.5))
    (line,) = told(tvae("compare", image, noisy, "--json"))
    assert line["relative_l2"] == pytest.approx(distance(values, values + np.float32(0.5)))
    for suffix in (".npz", ".latent", ".npy", ".pt"):
        same = tmp_path / f"same{suffix}"
        assert tvae("convert", image, same).exit_code == 0
        for pair in ((image, same), (same, image), (same, noisy)):
            result = tvae("compare", *pair, "--json")
            assert told(result)[0]["equal"] is (pair[1] != noisy), pair
    assert tvae("compare", clip, clip / "index.json").stdout == f"{clip}: equal\n"
    assert tvae("compare", latents, latents).stdout.endswith("\n2 equal\n")


def test_clips_cut_into_other_files_are_equal(tvae: Tvae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_clip(tmp_path / "clip.mkv", 6, sound=False)
    for folder, frames in (("one", 64), ("many", 2)):
        monkeypatch.setattr("tvae.pipeline.jobs.parts.FRAMES", frames)
        assert tvae("encode", tmp_path / "clip.mkv", "-o", tmp_path / folder).exit_code == 0
    clips = [tmp_path / folder / "clip.mkv.latents" for folder in ("one", "many")]
    counts = [len([*clip.glob("0*.safetensors")]) for clip in clips]
    assert counts[0] < counts[1]
    assert tvae("compare", *clips).stdout == f"{clips[0]}: equal\n"
    assert tvae("encode", tmp_path / "clip.mkv", "-o", tmp_path / "model", "--space", "model").exit_code == 0
    result = tvae("compare", clips[0], tmp_path / "model" / "clip.mkv.latents")
    assert (result.exit_code, "make them alike with tvae convert --to-space" in result.stderr) == (3, True)


def test_exit_codes(tvae: Tvae, tmp_path: Path, photo: Path, other_photo: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    for folder in (first, second):
        folder.mkdir()
        (folder / "a.png").write_bytes(photo.read_bytes())
    assert tvae("compare", first, second, "--within", 0).exit_code == 0
    (first / "b.png").write_bytes(photo.read_bytes())
    result = tvae("compare", first, second, "--within", 0)
    assert (result.exit_code, result.stdout) == (3, "a.png: equal\n1 equal, 1 not compared\n")
    assert "b.png: only the first folder has it" in result.stderr
    (second / "b.png").write_bytes(other_photo.read_bytes())
    (second / "c.png").write_bytes(b"no picture")
    (first / "c.png").write_bytes(photo.read_bytes())
    lines = told(tvae("compare", first, second, "--json"))
    assert [line["type"] for line in lines] == ["compared", "compared", "not_compared"]
    assert "c.png" in lines[2]["error"]
    found = lines[1]["relative_l2"]
    assert tvae("compare", first, second, "--within", found * 1.01).exit_code == 3
    assert tvae("compare", first, second, "--within", found * 0.99).exit_code == 4
    assert tvae("compare", first, tmp_path / "nothing").exit_code == 2
    assert "works with files of this machine only" in tvae("compare", first, "s3://bucket/b").stderr
    assert tvae("compare", first, second, "--within", -1).exit_code == 2


def test_what_cannot_be_compared(tvae: Tvae, tmp_path: Path, photo: Path) -> None:
    wide = tmp_path / "wide.png"
    Image.new("RGB", (31, 20)).save(wide)
    some = {f"w{n}": np.ones(3, np.float32) for n in range(6)}
    save_file(some, tmp_path / "some.safetensors")
    save_file({"w0": some["w0"]} | {"x": np.ones((2, 2), np.float32)}, tmp_path / "others.safetensors")
    save_file(some | {"w3": np.ones(4, np.float32)}, tmp_path / "longer.safetensors")
    save_file(some | {"w3": np.full(3, np.nan, np.float32)}, tmp_path / "nan.safetensors")
    (tmp_path / "empty.png").touch()
    some_file = tmp_path / "some.safetensors"
    for pair, reason in (
        ((photo, wide), f"{photo} has 30x20 pixels, and {wide} has 31x20"),
        ((photo, some_file), f"{some_file} holds latents or tensors, and the other does not"),
        ((some_file, tmp_path / "others.safetensors"), "only the first has w1, w2, w3, 2 more, only the second x"),
        ((some_file, tmp_path / "longer.safetensors"), "tensor 'w3': values of different shapes: [3] and [4]"),
        ((some_file, tmp_path / "nan.safetensors"), "tensor 'w3': there are values that are not finite"),
        ((photo, tmp_path / "empty.png"), f"{tmp_path / 'empty.png'}: "),
    ):
        result = tvae("compare", *pair)
        assert result.exit_code == 3, pair
        assert reason in result.stderr, result.stderr
        assert result.stderr.count("\n") == 1


def test_what_the_system_does_not_give(tvae: Tvae, photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tvae.pipeline.media.sandbox.Sandbox.open_reader", refused)
    result = tvae("compare", photo, photo)
    assert (result.exit_code, result.stderr) == (3, f"tvae: {photo}: cannot be read: Permission denied\n")
