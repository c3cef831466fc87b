"""What is done already is found in the store, and neither fetched nor made again; what is outdated is made again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load
from stores import Bucket

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import ItemDone, ItemFailed, ItemPlanned, ItemSkipped

Run = Callable[..., Any]


@pytest.fixture
def photos(picture: Callable[..., Path], bucket: Bucket) -> str:
    for n in range(3):
        bucket.put(f"in/{n}.png", picture(f"{n}.png", seed=n))
    return bucket.url("in")


@pytest.fixture
def done(run: Run, photos: str, bucket: Bucket) -> str:
    assert run("encode", photos, output=bucket.url("out"))[0].done == 3
    bucket.server.requests.clear()
    return photos


def test_nothing_is_fetched_or_sent_again(run: Run, done: str, bucket: Bucket) -> None:
    finished, events = run("encode", done, output=bucket.url("out"))
    assert finished.skipped == 3
    assert sorted(str(event.output) for event in events if isinstance(event, ItemSkipped)) == [
        bucket.url(f"out/{n}.png.safetensors") for n in range(3)
    ]
    assert not bucket.asked("GET", "in/")
    assert not bucket.asked("PUT")


def test_a_new_content_of_the_same_size(run: Run, done: str, bucket: Bucket) -> None:
    """Stores tell contents apart, however soon one follows the other."""
    before = {name: bucket.get(name) for name in bucket.names("out")}
    content = bytearray(bucket.get("in/1.png"))
    other = bytes(content[:-1]) + bytes([content[-1] ^ 1])
    bucket.put("in/1.png", other)
    finished, _ = run("encode", done, output=bucket.url("out"))
    assert (finished.done, finished.skipped) == (1, 2)
    changed = [name for name in before if bucket.get(name) != before[name]]
    assert changed == ["out/1.png.safetensors"]


def test_other_options(run: Run, done: str, bucket: Bucket) -> None:
    assert run("encode", done, output=bucket.url("out"), space="model")[0].done == 3


@pytest.mark.slow
def test_no_clobber_and_overwrite(run: Run, done: str, bucket: Bucket) -> None:
    bucket.put("out/1.png.safetensors", b"mine")
    finished, _ = run("encode", done, output=bucket.url("out"), existing="keep")
    assert finished.skipped == 3
    assert bucket.get("out/1.png.safetensors") == b"mine"
    finished, events = run("encode", done, output=bucket.url("out"))
    assert (finished.skipped, finished.failed) == (2, 1)
    (failed,) = (event for event in events if isinstance(event, ItemFailed))
    assert failed.error == (
        f"{bucket.url('out/1.png.safetensors')} exists and is not latents of tvae; move it away, or pass --overwrite"
    )
    assert bucket.get("out/1.png.safetensors") == b"mine"
    finished, _ = run("encode", done, output=bucket.url("out"), existing="overwrite")
    assert finished.done == 3
    assert load(bucket.get("out/1.png.safetensors"))["latents"].shape[0] == 3


def test_damaged_latents_are_made_again(run: Run, done: str, bucket: Bucket) -> None:
    whole = bucket.get("out/0.png.safetensors")
    bucket.put("out/0.png.safetensors", whole[:-1])
    finished, _ = run("encode", done, output=bucket.url("out"), existing="overwrite")
    assert finished.done == 3
    assert bucket.get("out/0.png.safetensors") == whole


def test_a_dry_run(run: Run, done: str, bucket: Bucket) -> None:
    bucket.client.delete_object(Bucket=bucket.name, Key="out/2.png.safetensors")
    _, events = run("encode", done, output=bucket.url("out"), dry_run=True)
    planned = {str(event.output): event.exists for event in events if isinstance(event, ItemPlanned)}
    assert planned == {bucket.url(f"out/{n}.png.safetensors"): n != 2 for n in range(3)}
    assert not bucket.asked("PUT")
    assert not bucket.asked("GET", "in/")


def test_inputs_stay(run: Run, photos: str, bucket: Bucket) -> None:
    """Reconstructions of photos bear the photos' names."""
    before = {name: bucket.get(name) for name in bucket.names()}
    for output in (photos, f"{photos}/"):
        with pytest.raises(UsageError, match=rf"{photos}/0.png is an input of this run"):
            run("roundtrip", photos, output=output)
    assert {name: bucket.get(name) for name in bucket.names()} == before


@pytest.mark.long
def test_a_roundtrip(run: Run, photos: str, bucket: Bucket) -> None:
    finished, events = run("roundtrip", photos, output=bucket.url("out"))
    assert finished.done == 3
    assert all(event.quality is not None for event in events if isinstance(event, ItemDone))
    assert bucket.names("out") == [f"out/{n}.png" for n in range(3)]
    assert run("roundtrip", photos, output=bucket.url("out"))[0].skipped == 3
    finished, events = run("roundtrip", photos, output=bucket.url("out"), posterior="mean", existing="keep")
    assert finished.skipped == 3


def test_the_output_is_not_searched(run: Run, photos: str, bucket: Bucket) -> None:
    assert run("roundtrip", photos, output=f"{photos}/out")[0].done == 3
    finished, _ = run("roundtrip", photos, output=f"{photos}/out", recursive=True)
    assert finished.skipped == 3
    finished, _ = run("roundtrip", bucket.url("in"), output=bucket.url("elsewhere"), recursive=True)
    assert finished.done == 6


@pytest.mark.slow
def test_pictures_of_other_programs_are_left_alone(run: Run, photos: str, bucket: Bucket) -> None:
    mine = bucket.get("in/0.png")
    bucket.put("out/1.png", mine)
    finished, events = run("roundtrip", photos, output=bucket.url("out"))
    assert (finished.done, finished.skipped) == (2, 1)
    (skipped,) = (event for event in events if isinstance(event, ItemSkipped))
    assert "it does not say that tvae made it" in skipped.reason
    assert bucket.get("out/1.png") == mine
