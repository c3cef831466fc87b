"""``tvae cache`` and ``tvae verify`` from the shell: events, exit codes, one line for what is refused."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import av
import numpy as np
import pytest
from cache_vaes import saved
from PIL import Image
from program import invoke

from tvae.cli.completion import trainers
from tvae.pipeline.caches import TRAINERS


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved("sdxl", Path("vae"))
    Path("photos").mkdir()
    for n in range(2):
        pixels = np.random.default_rng(n).integers(0, 256, (64, 96, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"photos/{n}.png")
    Path("photos/0.txt").write_text("a caption")


def call(*words: str) -> tuple[int, str, str]:
    done = invoke([*words])
    return done.exit_code, done.stdout, done.stderr


CACHE = ("cache", "photos", "--for", "kohya", "--vae", "vae", "-o", "out", "--size", "64x64", "--buckets", "32-128/32")


def test_events_and_a_second_run() -> None:
    code, out, told = call(*CACHE, "--json")
    events = [json.loads(line) for line in out.splitlines()]
    assert (code, told) == (0, "")
    assert events[0]["operation"] == "cache"
    done = {event["output"] for event in events if event["type"] == "item_done"}
    assert done == {str(Path("out") / f"{n}_0096x0064_sdxl.npz") for n in range(2)}
    code, out, told = call(*CACHE)
    assert (code, "2 skipped" in told) == (0, True)
    assert not list(Path("out").glob("*.txt"))


def test_where_the_trainer_looks_is_told() -> None:
    assert "kohya looks for a cache beside the images" in call(*CACHE)[2]
    beside = [word if word != "out" else "photos" for word in CACHE]
    assert "beside" not in call(*beside)[2]
    assert Path("photos/0_0096x0064_sdxl.npz").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vae", "words", "told"),
    [
        ("hunyuan15", [], True),
        ("hunyuan15", ["--arch", "hv15"], True),
        ("flux2", ["--arch", "f2d"], False),
        ("hunyuan", [], False),
    ],
)
def test_what_is_of_one_model_is_told_for_it_alone(vae: str, words: list[str], told: bool) -> None:
    saved(vae, Path("other"))
    run = ("cache", "photos/0.png", "--for", "musubi", "--vae", "other", "-o", "out", "--size", "64x64")
    code, _, error = call(*run, *words)
    assert (code, "set resolution, enable_bucket" in error) == (0, True)
    assert ("(hv15)" in error) is told


@pytest.mark.slow
def test_clips_of_several_lengths_from_the_shell() -> None:
    saved("wan", Path("other"))
    with av.open("clip.mkv", "w") as container:
        stream = container.add_stream("libx264rgb", rate=16)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "rgb24"
        for n in range(12):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((48, 64, 3), n, np.uint8), format="rgb24")))
        container.mux(stream.encode())
    run = ("cache", "clip.mkv", "--for", "musubi", "--arch", "wan", "--vae", "other", "-o", "out", "--size", "64x48")
    asked = (*run, "--frames", "5,9", "--stride", "5,9")
    assert call(*asked)[0] == 0
    names = [f"clip_{start:05d}-{frames:03d}_0064x0048_wan.safetensors" for start, frames in ((0, 5), (0, 9), (5, 5))]
    assert sorted(path.name for path in Path("out").iterdir() if path.is_file()) == names
    assert "1 skipped" in call(*asked)[2]
    assert call("verify", "out")[:2] == (0, "1 fine\n")
    printed = tomllib.loads(call(*asked, "--print-config")[1])["step"][0]["cache"]
    assert (printed["frames"], printed["stride"]) == ([5, 9], [5, 9])
    assert call(*run, "--frames", "5", "--max-frames", "9")[0] == 2


def test_verify_finds_what_was_damaged_and_what_is_stale() -> None:
    call(*CACHE)
    assert call("verify", "out")[:2] == (0, "2 fine\n")
    Image.new("RGB", (96, 64)).save("photos/0.png")
    code, out, _ = call("verify", "out", "--source", "photos")
    assert code == 0
    assert out.startswith(f"{Path('out') / '0_0096x0064_sdxl.npz'}: stale: its source")
    file = Path("out/1_0096x0064_sdxl.npz")
    data = bytearray(file.read_bytes())
    data[-300] ^= 1
    file.write_bytes(data)
    code, out, _ = call("verify", "out")
    assert (code, out.splitlines()[-1]) == (4, "1 fine, 1 damaged")
    file.unlink()
    assert "1_0096x0064_sdxl.npz: incomplete" in call("verify", "out")[1]
    saved_again = saved("flux", Path("other"))
    assert saved_again is not None
    assert "another VAE" in call("verify", "out", "--vae", "other")[1]


def test_damaged_files_of_a_cache_count_once() -> None:
    words = ("cache", "photos", "--for", "ai-toolkit", "--vae", "vae", "-o", "out", "--size", "64x64")
    assert call(*words)[0] == 0
    assert call("verify", "out")[1] == "2 fine\n"
    for path in Path("out/_latent_cache").iterdir():
        path.write_bytes(path.read_bytes() + b"x")
    assert call("verify", "out")[1].splitlines()[-1] == "2 damaged"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--for", "nobody"], "one of"),
        (["--for", "kohya", "--arch", "flux"], "16 channels"),
        (["--for", "kohya", "--buckets", "big"], "--buckets big"),
        (["--for", "ai-toolkit", "--size", "64x32"], "one number"),
        (["--for", "ai-toolkit", "--buckets", "64-128"], "no range"),
        (["--for", "kohya", "--frames", "9"], "images alone"),
        (["--for", "kohya", "--stride", "9"], "--frames"),
        (["--for", "kohya", "--frames", "5", "--frame-sample", "2"], "kohya has no frame_sample; leave --frame-sample"),
        (["--for", "webdataset", "--frames", "5", "--frame-sample", "2"], "webdataset has no frame_sample"),
        (["--for", "kohya", "--max-frames", "129"], "kohya has no max_frames; leave --max-frames out"),
        (["--for", "webdataset", "--max-frames", "129"], "webdataset has no max_frames"),
        (["--for", "webdataset", "--frames", "5,9"], "does not tell pieces of several lengths apart"),
        (["--for", "kohya", "--frames", "5,x"], "--frames 5,x is no number of frames"),
        (["--for", "kohya", "--frames", "5", "--stride", "0"], "--stride 0 is too small"),
    ],
)
def test_refused_in_one_line(words: list[str], told: str) -> None:
    code, out, error = call("cache", "photos", "--vae", "vae", "-o", "out", *words)
    assert (code, out) == (2, "")
    assert told in error
    assert len(error.splitlines()) == 1
    assert not Path("out").exists()


def test_the_shell_knows_the_trainers() -> None:
    assert trainers("") == sorted(TRAINERS)
    assert trainers("mu") == ["musubi"]
