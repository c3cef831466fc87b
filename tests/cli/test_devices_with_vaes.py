"""``--devices`` with VAEs that are computed: the files of one device, byte by byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cache_vaes import saved
from foreign_files import WRITERS, latents_of, saved_model
from PIL import Image
from program import invoke
from typer.testing import Result

from tvae.pipeline.jobs.devices import names

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(names, "present_devices", lambda _text: ["cpu:0", "cpu:1"])
    Path("photos").mkdir()
    for n in range(5):
        pixels = np.random.default_rng(n).integers(0, 256, (64, 64 + 32 * (n % 2), 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"photos/{n}.png")


def call(*words: str) -> Result:
    result = invoke([*words, "--batch", "1"])
    assert result.exit_code == 0, result.stderr
    return result


def content(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_there_and_back() -> None:
    saved_model(Path("vae"))
    for name, more in (("one", []), ("two", ["--devices", "2"])):
        call("encode", "photos", "--vae", "vae", "-o", f"{name}-latents", "--posterior", "sample", *more)
        call("decode", "one-latents", "-o", name, *more)
    assert len(content("two")) == 5
    assert content("two-latents") == content("one-latents")
    assert content("two") == content("one")


def test_latents_of_other_programs() -> None:
    model = saved_model(Path("vae"))
    Path("in").mkdir()
    for name in ("a.latent", "b.latent", "c.latent"):
        WRITERS["comfy.latent"](Path("in") / name, latents_of(model))
    for name, more in (("one", []), ("two", ["--devices", "2"])):
        call("decode", "in", "--vae", "vae", "--space", "raw", "-o", name, *more)
    assert len(content("two")) == 3
    assert content("two") == content("one")


def test_a_cache_for_a_trainer() -> None:
    saved("sdxl", Path("vae"))
    words = ("photos", "--for", "kohya", "--vae", "vae", "--size", "64x64", "--buckets", "32-128/32")
    call("cache", *words, "-o", "one")
    call("cache", *words, "-o", "two", "--devices", "2")
    arrays = [{path.name: dict(np.load(path)) for path in Path(folder).glob("*.npz")} for folder in ("one", "two")]
    assert len(arrays[0]) == 5
    np.testing.assert_equal(arrays[1], arrays[0])
    assert "5 skipped" in call("cache", *words, "-o", "two", "--devices", "2").stderr
