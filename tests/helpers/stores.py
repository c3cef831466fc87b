"""An object store and a web server on this machine, faults on purpose, and what is in them, seen by other code."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest

__all__ = ["Bucket", "S3Server", "s3_server", "web_server"]

Fault = str
"""``cut``: the connection is closed in the middle of the answer. Else a status line and a code of S3, such as ``403
AccessDenied``."""


@dataclass
class S3Server:
    """What was asked of it, as ``METHOD /bucket/key``, and what it is to do wrong."""

    address: str = ""
    requests: list[str] = field(default_factory=list)
    fault: Callable[[str], Fault | None] = lambda _request: None
    """For a request, what goes wrong with it."""


class Bucket:
    """A bucket, by boto3, which shares no code with fsspec's file systems."""

    def __init__(self, server: S3Server, name: str) -> None:
        self.server, self.name = server, name
        self.client = boto3.client(
            "s3",
            endpoint_url=server.address,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        self.client.create_bucket(Bucket=name)

    def url(self, key: str = "") -> str:
        return f"s3://{self.name}/{key}"

    def put(self, key: str, content: bytes | Path) -> str:
        """Returns its URL."""
        body = content if isinstance(content, bytes) else content.read_bytes()
        self.client.put_object(Bucket=self.name, Key=key, Body=body)
        return self.url(key)

    def put_folder(self, folder: Path, prefix: str) -> str:
        """All files of a folder; returns its URL."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path)
        return self.url(prefix)

    def get(self, key: str) -> bytes:
        content: bytes = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return content

    def names(self, prefix: str = "") -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return [one["Key"] for page in pages for one in page.get("Contents", ())]

    def download(self, prefix: str, folder: Path) -> Path:
        """All objects below a prefix, as files."""
        for key in self.names(prefix):
            target = folder / key.removeprefix(prefix).lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.get(key))
        return folder

    def asked(self, method: str, key: str = "") -> list[str]:
        """Requests so far for objects whose key begins so."""
        return [one for one in self.server.requests if one.startswith(f"{method} /{self.name}/{key}")]


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Moto's server. AWS_* variables of the caller lead to it."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, *_: Any) -> None:
            """Nothing."""

    writing = threading.Lock()
    found, moto = S3Server(), DomainDispatcherApplication(create_backend_app)

    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
        found.requests.append(request)
        fault = found.fault(request)
        if fault is None:
            with writing if request.startswith("PUT") else nullcontext():  # moto takes no two at once of one object
                answer: Iterable[bytes] = moto(environ, start)
            return answer
        if fault == "cut":
            return _cut(b"".join(moto(environ, start)))
        status, _, code = fault.partition(" ")
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        body = f"<Error><Code>{code}</Code><Message>{code}: key AKIASECRET</Message></Error>".encode()
        body = b"" if environ["REQUEST_METHOD"] == "HEAD" else body
        start(f"{status} {code}", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]

    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
            ("AWS_EC2_METADATA_DISABLED", "true"),
            ("AWS_MAX_ATTEMPTS", "1"),
        ):
            patch.setenv(name, value)
        patch.delenv("AWS_PROFILE", raising=False)
        thread.start()
        try:
            found.address = f"http://127.0.0.1:{server.server_port}"
            patch.setenv("AWS_ENDPOINT_URL", found.address)
            yield found
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _cut(content: bytes) -> Iterator[bytes]:
    yield content[: len(content) // 2]
    raise ConnectionAbortedError("on purpose")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def web_server(folder: Path, handler: type[SimpleHTTPRequestHandler] = _Quiet) -> Iterator[str]:
    """Python's own, of a folder; its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
