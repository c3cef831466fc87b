"""What a dry run of a batch says of items: new, outdated and why, done, or that they cannot be read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clips import write_clip
from job_files import DECODE, ENCODE, checksums, photo
from outcomes import outcomes
from PIL import Image
from safetensors.numpy import save_file
from slow_but import slow_but

from tvae.pipeline.jobs import ItemFailed, ItemPlanned, ItemSkipped
from tvae.pipeline.jobs.describe import identity

Batch = Callable[..., Any]
Told = dict[str, tuple[str, str | None]]


@pytest.fixture
def dry(batch: Batch, tmp_path: Path) -> Callable[[str], Told]:
    """State and reason of each item, by its source's name; nothing is made."""

    def dry(text: str) -> Told:
        before = checksums(tmp_path)
        found: Told = {}
        for event in batch(text, dry_run=True)[1]:
            match event:
                case ItemPlanned():
                    found[event.input.name] = str(event.state), event.reason
                case ItemSkipped():
                    found[event.input.name] = "done", event.reason
                case ItemFailed():
                    found[event.input.name] = "unreadable", event.error
        assert {name: sum_ for name, sum_ in checksums(tmp_path).items() if name != "job.toml"} == {
            name: sum_ for name, sum_ in before.items() if name != "job.toml"
        }
        return found

    return dry


def other_vae(what: str) -> Callable[[Any], Any]:
    return lambda model: replace(identity(model), **{what: "b" * 64})


def test_states_of_items(
    batch: Batch, dry: Callable[[str], Told], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dry(ENCODE) == {f"{n}.png": ("new", None) for n in range(9)}
    batch(ENCODE)
    assert dry(ENCODE) == {f"{n}.png": ("done", "done already") for n in range(9)}
    photo(photos / "1.png", 77)
    os.utime(photos / "1.png", ns=(1, 1))
    (photos / "2.png").unlink()
    (photos / "2.png").symlink_to("nothing.png")
    (tmp_path / "out" / "3.png.safetensors").write_bytes(b"12")
    save_file({"latents": np.zeros(1, np.float32)}, tmp_path / "out" / "4.png.safetensors", {"format": "tvae"})
    photo(photos / "a.png", 5)
    (photos / "b.png").write_bytes(b"")
    (photos / "c.png").write_bytes(b"no picture")
    told = dry(ENCODE)
    assert told["0.png"] == ("done", "done already")
    assert told["1.png"] == ("outdated", "its source has changed")
    assert told["4.png"][0] == "outdated"
    assert "it is damaged" in str(told["4.png"][1])
    assert "is not latents of tvae; move it away" in str(told["3.png"][1])
    assert told["a.png"] == ("new", None)
    assert {name for name, (state, _) in told.items() if state == "unreadable"} == {"2.png", "3.png", "b.png", "c.png"}
    assert "is empty" in str(told["b.png"][1])
    changed = ENCODE + 'space = "model"\nalign = "crop"\n'
    assert dry(changed)["0.png"] == ("outdated", "it was made with another space, align")
    assert dry(ENCODE + 'existing = "overwrite"\n')["0.png"] == ("outdated", "it is to be overwritten")
    assert dry(changed + 'existing = "keep"\n')["0.png"] == ("done", "exists")
    for what, told in (
        ("weights_sha256", "another VAE made it: 'builtin'"),
        ("config_sha256", "the configuration of its VAE has changed"),
    ):
        monkeypatch.setattr("tvae.pipeline.jobs.examine.identity", other_vae(what))
        monkeypatch.setattr("tvae.pipeline.jobs.fingerprints.identity", other_vae(what))
        assert dry(ENCODE)["0.png"] == ("outdated", told)


@pytest.mark.slow
def test_what_is_planned_is_what_is_done(batch: Batch, photos: Path, tmp_path: Path) -> None:
    batch(ENCODE + DECODE)
    photo(photos / "1.png", 78)
    (tmp_path / "back" / "3.png").unlink()
    (tmp_path / "back" / "sub" / "7.png").unlink()
    planned = [result.planned for result in batch(ENCODE + DECODE, dry_run=True)[0]]
    assert planned == [1, 2]
    assert [result.done for result in batch(ENCODE + DECODE)[0]] == [1, 3]


@pytest.mark.long
@pytest.mark.parametrize(
    ("operation", "sandbox"),
    slow_but([("encode", "on"), ("roundtrip", "off")], product(("encode", "roundtrip"), ("off", "on"))),
)
def test_what_is_said_is_what_happens(operation: str, sandbox: str, batch: Batch, photos: Path, tmp_path: Path) -> None:
    """Of files whose names say too little or the wrong kind, and of what is in the way."""
    for path in photos.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    still = photo(photos / "a.png", 1)
    for name in ("still.gif", "still.webp"):
        Image.open(still).save(photos / name)
    write_clip(photos / "clip.mkv", 3, sound=False)
    (photos / "named.png").write_bytes((photos / "clip.mkv").read_bytes())
    (photos / "named.mkv").write_bytes(still.read_bytes())
    (photos / "empty.png").write_bytes(b"")
    (photos / "none.jpg").write_bytes(b"no picture")
    text = f'operation = "{operation}"\ninputs = "in"\noutput = "out"\nsandbox = "{sandbox}"\n'
    if operation == "roundtrip":
        photo(tmp_path / "out" / "a.png", 2)
    for turn, existing in enumerate(("skip", "skip", "keep")):
        asked = f'{text}existing = "{existing}"\n'
        said, happened = (outcomes(batch(asked, dry_run=dry)[1]) for dry in (True, False))
        assert said == happened
        assert {name for name, (what, *_) in happened.items() if what == "failed"} == {"empty.png", "none.jpg"}
        assert turn == 0 or "made" not in {what for what, *_ in happened.values()}


def test_a_cache(batch: Batch, photos: Path, tmp_path: Path) -> None:
    text = 'operation = "cache"\ninputs = "in"\noutput = "out"\nvae = "builtin"\n{}'
    text += 'cache = {{trainer = "kohya", architecture = "sd3", buckets = "64-128/64", flip = {}}}\n'
    plain = text.format("", "false")
    for existing in ("skip", "skip", "keep"):
        asked = text.format(f'existing = "{existing}"\n', "false")
        said, happened = (outcomes(batch(asked, dry_run=dry)[1]) for dry in (True, False))
        assert said == happened
    planned = {event.input.name: event for event in batch(text.format("", "true"), dry_run=True)[1][1:-1]}
    assert planned["0.png"].reason == "it was made of another source, or with another VAE or other options"
    overwritten = batch(text.format('existing = "overwrite"\n', "false"), dry_run=True)[1][1]
    assert (overwritten.state, overwritten.reason) == ("outdated", "it is to be overwritten")
    photo(photos / "mine.png", 1)
    ((name, _),) = ((e.output, e.state) for e in batch(plain, dry_run=True)[1] if getattr(e, "state", "") == "new")
    name.write_bytes(b"mine")
    said, happened = (outcomes(batch(plain, dry_run=dry)[1]) for dry in (True, False))
    assert said == happened
    assert "tvae did not write it" in happened["mine.png"][1]
