"""Stores that fail: one item fails with one line, the others are done, and nothing is there by halves."""

from __future__ import annotations

import builtins
import importlib.util
import os
import time
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from program import invoke
from safetensors.torch import load
from stores import Bucket, web_server

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import ItemFailed

Run = Callable[..., Any]


@pytest.fixture
def photos(picture: Callable[..., Path], bucket: Bucket) -> str:
    for n in range(3):
        bucket.put(f"in/{n}.png", picture(f"{n}.png", 256, 256, seed=n))
    return bucket.url("in")


@pytest.fixture(autouse=True)
def _few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits between tries are s3fs's, and take seconds."""
    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)


def failures(events: list[Any]) -> list[str]:
    return [event.error for event in events if isinstance(event, ItemFailed)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("request_", "fault", "message"),
    [
        ("GET {b}/in/1.png", "cut", "cannot read {u}/in/1.png: the connection was lost; run again"),
        pytest.param(
            "GET {b}/in/1.png", "404 NoSuchKey", "cannot read {u}/in/1.png: it does not exist", marks=pytest.mark.slow
        ),
        pytest.param(
            "GET {b}/in/1.png",
            "403 AccessDenied",
            "cannot read {u}/in/1.png: no permission; check AWS_ACCESS_KEY_ID",
            marks=pytest.mark.slow,
        ),
        ("PUT {b}/out/1.png", "403 AccessDenied", "cannot write {u}/out/1.png.safetensors: no permission; check AWS"),
        ("PUT {b}/out/1.png", "507 QuotaExceeded", "cannot write {u}/out/1.png.safetensors: there is no room left"),
        pytest.param(
            "PUT {b}/out/1.png",
            "404 NoSuchBucket",
            "cannot write {u}/out/1.png.safetensors: it does not exist",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_one_item_fails(run: Run, photos: str, bucket: Bucket, request_: str, fault: str, message: str) -> None:
    wanted = request_.format(b=f"/{bucket.name}")
    bucket.server.fault = lambda request: fault if request.startswith(wanted) else None
    finished, events = run("encode", photos, output=bucket.url("out"))
    assert (finished.done, finished.failed) == (2, 1)
    (told,) = failures(events)
    assert told.startswith(message.format(u=f"s3://{bucket.name}"))
    assert "AKIASECRET" not in told
    assert "\n" not in told
    assert bucket.names("out") == ["out/0.png.safetensors", "out/2.png.safetensors"]
    assert all(load(bucket.get(name)) for name in bucket.names("out"))
    bucket.server.fault = lambda _request: None
    finished, _ = run("encode", photos, output=bucket.url("out"))
    assert (finished.done, finished.skipped) == (1, 2)


def test_an_input_that_changes_while_it_is_read(run: Run, photos: str, bucket: Bucket) -> None:
    other = bucket.get("in/2.png")

    def change(request: str) -> None:
        if request == f"HEAD /{bucket.name}/in/1.png":
            bucket.server.fault = lambda _request: None
            bucket.put("in/1.png", other)

    bucket.server.fault = change
    finished, events = run("encode", photos, output=bucket.url("out"))
    assert (finished.done, finished.failed) == (2, 1)
    assert failures(events) == [f"{photos}/1.png changed while it was read; run again"]


def test_a_store_that_may_not_be_listed(run: Run, photos: str, bucket: Bucket, tmp_path: Path) -> None:
    bucket.server.fault = lambda request: "403 AccessDenied" if request == f"GET /{bucket.name}" else None
    with pytest.raises(UsageError, match=f"cannot (list|read) {photos}: "):
        run("encode", photos, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_store_that_cannot_be_listed_now(
    run: Run, picture: Callable[..., Path], photos: str, bucket: Bucket, tmp_path: Path
) -> None:
    bucket.server.fault = lambda request: "500 InternalError" if request == f"GET /{bucket.name}" else None
    finished, events = run("encode", photos, picture("own.png"), output=tmp_path / "out")
    assert (finished.done, finished.failed) == (1, 1)
    (told,) = failures(events)
    assert f"{photos}: the server answers 500" in told


def test_a_bucket_that_may_only_be_written_to(run: Run, picture: Callable[..., Path], bucket: Bucket) -> None:
    photo = picture("a.png")
    bucket.server.fault = lambda request: None if request.startswith("PUT") else "403 AccessDenied"
    with pytest.raises(UsageError, match=r"no permission.*--overwrite does without looking"):
        run("encode", photo, output=bucket.url("out"))
    assert run("encode", photo, output=bucket.url("out"), existing="overwrite")[0].done == 1
    bucket.server.fault = lambda _request: None
    assert bucket.names() == ["out/a.png.safetensors"]


def test_buckets_and_servers_that_are_not_there(run: Run, picture: Callable[..., Path], bucket: Bucket) -> None:
    photo = picture("a.png")
    with pytest.raises(UsageError, match=r"^cannot write to s3://none-such/out: s3://none-such does not exist$"):
        run("encode", photo, output="s3://none-such/out")
    with pytest.raises(UsageError, match=r"^cannot write to http://127.0.0.1/out: web servers are only read"):
        run("encode", photo, output="http://me:secret@127.0.0.1/out?sig=secret")


def test_the_only_item(run: Run, picture: Callable[..., Path], bucket: Bucket) -> None:
    bucket.server.fault = lambda request: "507 QuotaExceeded" if request.startswith("PUT") else None
    finished, events = run("encode", picture("a.png"), output=bucket.url("a.safetensors"))
    assert finished.failed == 1
    wanted = "there is no room left; make room or choose another output with -o"
    assert failures(events) == [f"cannot write {bucket.url('a.safetensors')}: {wanted}"]


class _Rude(SimpleHTTPRequestHandler):
    """Close the connection in the middle of ``cut.png`` and before ``lost.png``, ask for a password for ``closed.png``,
    send ``endless.png`` without its length, and never answer for ``stalls.png``."""

    def do_HEAD(self) -> None:
        if "endless" in self.path:
            self.send_response(200)
            self.end_headers()
        elif "lost" in self.path:
            self.close_connection = True
        elif "stalls" in self.path:
            time.sleep(90)
        else:
            super().do_HEAD()

    def do_GET(self) -> None:
        if any(name in self.path for name in ("endless", "lost", "stalls")):
            self.do_HEAD()
            return
        if "closed" in self.path:
            self.send_error(401)
        elif "cut" in self.path:
            content = Path(self.translate_path(self.path)).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
        else:
            super().do_GET()

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def test_a_web_server_that_fails(run: Run, picture: Callable[..., Path], tmp_path: Path) -> None:
    for name in ("cut", "closed", "fine"):
        picture(f"web/{name}.png", 256, 256)
    with web_server(tmp_path / "web", _Rude) as address:
        urls = [f"{address}/{name}.png?sig=secret" for name in ("cut", "closed", "fine")]
        finished, events = run("encode", *urls, output=tmp_path / "out")
    assert (finished.done, finished.failed) == (1, 2)
    assert sorted(failures(events)) == [
        f"cannot read {address}/closed.png: no permission",
        f"cannot read {address}/cut.png: the connection was lost; run again",
    ]
    assert os.listdir(tmp_path / "out") == ["fine.png.safetensors"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("endless", "the server does not say how many bytes it has"),
        ("lost", "the connection was lost; run again"),
        ("gone", "the server cannot be reached; check the address and the network"),
        pytest.param("stalls", "the server does not answer; run again", marks=pytest.mark.slow),
    ],
)
def test_a_web_server_that_fails_before_any_work(
    name: str, message: str, picture: Callable[..., Path], tmp_path: Path
) -> None:
    own = picture("own.png")
    with web_server(tmp_path, _Rude) as address:
        url = f"{'http://127.0.0.1:9' if name == 'gone' else address}/{name}.png"
        result = invoke(["encode", f"{url}?sig=secret", str(own), "-o", str(tmp_path / "out")])
    assert result.exit_code == 3, result.stderr
    assert f"cannot read {url}: {message}" in result.stderr
    assert "secret" not in result.output
    assert os.listdir(tmp_path / "out") == ["own.png.safetensors"]


@pytest.mark.parametrize(
    ("url", "package", "install"),
    [
        ("s3://b/a.png", "s3fs", "tvae[remote]"),
        ("gs://b/a.png", "gcsfs", "tvae[remote,gcs]"),
        ("https://127.0.0.1/a.png", "aiohttp", "tvae[remote]"),
    ],
)
def test_a_package_that_is_missing(
    run: Run, monkeypatch: pytest.MonkeyPatch, url: str, package: str, install: str, tmp_path: Path
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else there(name, *rest)
    )
    with pytest.raises(UsageError) as raised:
        run("encode", url, output=tmp_path / "out")
    assert str(raised.value) == f"{url.partition(':')[0]}:// needs the package {package}: pip install '{install}'"


def test_a_full_disk_here(run: Run, photos: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no fault of the store's."""
    opened = builtins.open

    def full(name: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if str(name).endswith("1.png") and "w" in mode:
            raise OSError(28, "No space left on device", str(name))
        return opened(name, mode, *rest, **more)

    monkeypatch.setattr(builtins, "open", full)
    finished, events = run("encode", photos, output=bucket.url("out"))
    assert (finished.done, finished.failed) == (2, 1)
    (told,) = failures(events)
    assert "No space left on device" in told
    assert "check the disk" in told


def test_nothing_is_left_here(run: Run, photos: str, bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "spill").mkdir()
    bucket.server.fault = lambda request: "507 QuotaExceeded" if "/out/1" in request else None
    run("encode", photos, output=bucket.url("out"), spill=str(tmp_path / "spill"))
    assert [path for path in (tmp_path / "spill").rglob("*") if path.is_file()] == []
