"""The installed program from bucket to bucket, from a web server and from the hub."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load, load_file
from stand_in_hub import hub_server
from stores import Bucket, s3_server, web_server

pytestmark = pytest.mark.slow
Tvae = Callable[..., Any]


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    levels = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    Image.fromarray(levels).save(tmp_path / "a.png")
    return tmp_path / "a.png"


def test_buckets(tvae: Tvae, photo: Path, tmp_path: Path) -> None:
    alone = ("--batch", "1")  # a picture that shares its call with another has other last bits
    tvae("encode", photo, "-o", tmp_path / "here", *alone)
    with s3_server() as server:
        bucket = Bucket(server, "end-to-end")
        for name in ("a", "b"):
            bucket.put(f"in/{name}.png", photo)
        out = ("-o", bucket.url("latents"), *alone)
        first = tvae("encode", bucket.url("in/"), *out)
        assert f"{bucket.url('in/a.png')} -> {bucket.url('latents/a.png.safetensors')}" in first.stdout
        events = [
            json.loads(line) for line in tvae("encode", bucket.url("in/*.png"), *out, "--json").stdout.splitlines()
        ]
        assert [event["type"] for event in events] == ["run_started", "item_skipped", "item_skipped", "run_done"]
        bucket.put("in/bad.png", b"\x89PNG\r\n")
        failed = tvae("encode", bucket.url("in"), *out, code=3)
        assert bucket.url("in/bad.png") in failed.stderr
        tvae("decode", bucket.url("latents"), "-o", bucket.url("decoded/"))
        assert bucket.names("decoded") == ["decoded/a.png", "decoded/b.png"]
        tvae("encode", bucket.url("none"), *out, code=2)
        latents = load(bucket.get("latents/a.png.safetensors"))["latents"]
    assert latents.equal(load_file(tmp_path / "here/a.png.safetensors")["latents"])


def test_the_web_and_the_hub(tvae: Tvae, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with web_server(tmp_path) as address, hub_server() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        hub.files["in/b.png"] = photo.read_bytes()
        urls = f"{address}/a.png?sig=secret", "hf://datasets/me/photos/in/b.png"
        done = tvae("encode", *urls, "-o", "hf://datasets/me/photos/out")
        assert "secret" not in done.stdout + done.stderr
        assert sorted(hub.files) == ["in/b.png", "out/a.png.safetensors", "out/b.png.safetensors"]
        assert len(done.stderr.splitlines()) == 2, done.stderr
    assert all(load(hub.files[f"out/{name}.png.safetensors"])["latents"].isfinite().all() for name in ("a", "b"))
