"""Google Cloud Storage, by an emulator on this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google_store import GoogleBucket
from safetensors.torch import load, load_file

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import ItemDone, ItemFailed, Job, run_job
from tvae.pipeline.stores import KINDS, Store, StoreError, parse_url

Run = Callable[..., Any]
IN_PIECES = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
"""aiohttp's, of pieces that gcsfs sends as bytes."""


@pytest.fixture
def photos(picture: Callable[..., Path], google: GoogleBucket) -> str:
    for n in range(3):
        google.put(f"in/{n}.png", picture(f"photos/{n}.png", seed=n).read_bytes())
    google.server.requests.clear()
    return google.url("in")


def failures(events: list[Any]) -> list[str]:
    return [event.error for event in events if isinstance(event, ItemFailed)]


def test_photos(run: Run, photos: str, google: GoogleBucket, tmp_path: Path) -> None:
    run("encode", tmp_path / "photos", output=tmp_path / "here")
    finished, events = run("encode", photos, output=google.url("out"))
    assert finished.done == 3, events
    assert sorted(str(event.output) for event in events if isinstance(event, ItemDone)) == [
        google.url(f"out/{n}.png.safetensors") for n in range(3)
    ]
    for n in range(3):
        there, here = load(google.get(f"out/{n}.png.safetensors")), load_file(tmp_path / f"here/{n}.png.safetensors")
        assert there["latents"].equal(here["latents"])
    google.server.requests.clear()
    assert run("encode", photos, output=google.url("out"))[0].skipped == 3
    assert not google.asked("GET", "in/")
    assert not google.asked("PUT")
    google.put("in/1.png", (tmp_path / "photos/0.png").read_bytes())
    finished, _ = run("encode", photos, output=google.url("out"))
    assert (finished.done, finished.skipped) == (1, 2)
    assert run("decode", google.url("out"), output=google.url("back"))[0].done == 3
    assert google.names("back") == [f"back/{n}.png" for n in range(3)]
    assert run("encode", google.url("**/*.png"), output=tmp_path / "all")[0].done == 6


def test_clips_in_pieces(run: Run, clip: Callable[..., Path], google: GoogleBucket, tmp_path: Path) -> None:
    google.put("in/c.mkv", clip("c.mkv").read_bytes())
    assert run("encode", google.url("in/c.mkv"), output=google.url("out"))[0].done == 1
    assert google.names("out") == ["out/c.mkv.latents/000000.safetensors", "out/c.mkv.latents/index.json"]
    assert google.asked("PUT")[-1].endswith("/index.json")
    assert run("decode", google.url("out"), output=tmp_path / "films")[0].done == 1
    assert [path.name for path in (tmp_path / "films").iterdir()] == ["c.mkv.mp4"]


def test_names(run: Run, picture: Callable[..., Path], google: GoogleBucket) -> None:
    """None of them is part of a URL's query, or a generation."""
    names = ["a b.png", "100%25.png", "x#3.png", "q?y=1.png", "ü{0}.png", "a+b.png"]
    for name in names:
        google.put(f"in/{name}", picture("a.png").read_bytes())
    assert run("encode", google.url("in"), output=google.url("out"))[0].done == len(names)
    assert google.names("out") == sorted(f"out/{name}.safetensors" for name in names)
    assert run("encode", google.url("in"), output=google.url("out"))[0].skipped == len(names)


@IN_PIECES
def test_a_large_file_comes_and_goes_in_pieces(google: GoogleBucket, tmp_path: Path) -> None:
    place = parse_url(google.url("large"))
    content = bytes(range(256)) * (150 << 10)  # 37.5 MiB
    (tmp_path / "large").write_bytes(content)
    store = Store(place.kind)
    store.send(tmp_path / "large", place.key)
    assert len(google.asked("PUT")) == 1
    assert len(google.asked("PART")) == 3
    assert google.get("large") == content
    google.server.requests.clear()
    file = store.look(place.key)
    assert file is not None
    assert (file.size, file.version) == (len(content), google.generation("large"))
    store.fetch(file, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    assert len(google.asked("GET")) == 1, "one that streams; several hold 16 MiB each"


def test_a_transfer_may_take_long(google: GoogleBucket) -> None:
    """And a server that says nothing is given up."""
    import gcsfs.core

    files = KINDS["gs"].opened()
    assert (files.requests_timeout.total, files.requests_timeout.sock_read) == (None, 60)
    assert type(files) is gcsfs.core.GCSFileSystem, "the one around it writes what is there before it is complete"


@pytest.mark.parametrize(
    ("request_", "fault", "message"),
    [
        ("GET {b}/in/1.png", "cut", "cannot read {u}/in/1.png: the connection was lost; run again"),
        ("GET {b}/in/1.png", "404 none", "cannot read {u}/in/1.png: it does not exist"),
        ("GET {b}/in/1.png", "403 no", "cannot read {u}/in/1.png: no permission; check GOOGLE_APPLICATION_CREDENTIALS"),
        ("PUT {b}/out/1.png", "401 no", "cannot write {u}/out/1.png.safetensors: no permission; check GOOGLE_"),
        ("PUT {b}/out/1.png", "403 no", "cannot write {u}/out/1.png.safetensors: no permission; check GOOGLE_"),
        ("PUT {b}/out/1.png", "507 full", "cannot write {u}/out/1.png.safetensors: there is no room left"),
        ("PUT {b}/out/1.png", "503 busy", "cannot write {u}/out/1.png.safetensors: the server answers 503; run again"),
        ("PUT {b}/out/1.png", "404 none", "cannot write {u}/out/1.png.safetensors: it does not exist"),
    ],
)
def test_one_item_fails(
    run: Run,
    photos: str,
    google: GoogleBucket,
    request_: str,
    fault: str,
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    wanted = request_.format(b=google.name)
    google.server.fault = lambda request: fault if request.startswith(wanted) else None
    finished, events = run("encode", photos, output=google.url("out"))
    assert (finished.done, finished.failed) == (2, 1)
    (told,) = failures(events)
    assert told.startswith(message.format(u=f"gs://{google.name}"))
    assert "SECRET" not in told
    assert "\n" not in told
    assert capfd.readouterr().err == ""
    assert google.names("out") == ["out/0.png.safetensors", "out/2.png.safetensors"]
    google.server.fault = lambda _request: None
    finished, _ = run("encode", photos, output=google.url("out"))
    assert (finished.done, finished.skipped) == (1, 2)


@IN_PIECES
def test_an_upload_in_pieces_that_fails(google: GoogleBucket, tmp_path: Path) -> None:
    """Nothing is there of it, nor is what was there before replaced."""
    place = parse_url(google.put("large", b"old"))
    (tmp_path / "large").write_bytes(bytes(20 << 20))
    google.server.fault = lambda request: "503 busy" if google.asked("PART")[1:] else None
    with pytest.raises(StoreError, match=r"^cannot write gs://.*/large: the server answers 503; run again$"):
        Store(place.kind).send(tmp_path / "large", place.key)
    assert google.get("large") == b"old"


def test_buckets_that_are_not_there(run: Run, picture: Callable[..., Path], google: GoogleBucket) -> None:
    photo = picture("a.png")
    with pytest.raises(UsageError, match=r"^cannot write to gs://none-such/out: gs://none-such does not exist$"):
        run("encode", photo, output="gs://none-such/out")
    with pytest.raises(UsageError, match="gs://none-such/in does not exist"):
        run("encode", "gs://none-such/in", output=google.url("out"))


def test_who_may_see_objects_alone(run: Run, picture: Callable[..., Path], google: GoogleBucket) -> None:
    """As roles for objects have it: what is known of the bucket is not for them. The bucket is empty."""
    google.server.fault = lambda request: "403 no" if request == f"LOOK {google.name}/" else None
    assert run("encode", picture("a.png"), output=google.url("out"))[0].done == 1
    google.server.fault = lambda request: "404 none" if request.split("/")[0].endswith(google.name) else None
    with pytest.raises(UsageError, match="does not exist"):
        run("encode", picture("a.png"), output=google.url("out"))


def test_who_may_only_write(run: Run, picture: Callable[..., Path], google: GoogleBucket) -> None:
    google.server.fault = lambda request: None if request.startswith("PUT") else "403 no"
    with pytest.raises(UsageError, match=r"no permission.*--overwrite does without looking"):
        run("encode", picture("a.png"), output=google.url("out"))
    assert run("encode", picture("a.png"), output=google.url("out"), existing="overwrite")[0].done == 1


def test_an_interrupted_clip(run: Run, clip: Callable[..., Path], google: GoogleBucket, stand_in: Run) -> None:
    source = google.put("in/c.mkv", clip("c.mkv", times=tuple(range(0, 3200, 40))).read_bytes())
    google.server.fault = lambda request: "507 full" if request.endswith("000003.safetensors") else None
    assert run("encode", source, output=google.url("out"))[0].failed == 1
    assert "out/c.mkv.latents/index.json" not in google.names("out")
    google.server.fault = lambda _request: None
    model = stand_in()
    run_job(Job("encode", (source,), output=google.url("out")), lambda _event: None, model=model)
    assert model.shapes == []
    assert "out/c.mkv.latents/index.json" in google.names("out")


def test_a_program_that_logs_hears_of_it(run: Run, photos: str, google: GoogleBucket) -> None:
    """A user's own handler is not in the way."""
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("gcsfs").addHandler(handler)
    try:
        google.server.fault = lambda request: "503 busy" if request.startswith("PUT") else None
        run("encode", f"{photos}/0.png", output=google.url("out"))
    finally:
        logging.getLogger("gcsfs").removeHandler(handler)
    assert any("out of retries" in one for one in heard)
