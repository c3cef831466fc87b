"""Google Cloud Storage on this machine, by gcp-storage-emulator, faults on purpose, and what is in it, seen without
gcsfs."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import HTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from urllib.request import Request, urlopen

import pytest

__all__ = ["GoogleBucket", "GoogleServer", "google_server"]

Fault = str
"""``cut``: the connection is closed before the answer. Else a status and what the server says, such as ``403 no``."""


@dataclass
class GoogleServer:
    """What was asked of it, as ``METHOD bucket/key``, and what it is to do wrong. LOOK asks for what is known of an
    object or a bucket, LIST for a folder's, GET for content; PUT sends it, PART one piece of it."""

    address: str = ""
    requests: list[str] = field(default_factory=list)
    fault: Callable[[str], Fault | None] = lambda _request: None
    """For a request, what goes wrong with it."""
    began: dict[str, str] = field(default_factory=dict)
    """What the pieces are of, by the number of the upload."""


class GoogleBucket:
    """A bucket, by its JSON API alone. Its own requests do not count."""

    def __init__(self, server: GoogleServer, name: str) -> None:
        self.server, self.name = server, name
        self._ask("POST", "/storage/v1/b?project=test", json.dumps({"name": name}).encode(), "application/json")

    def url(self, key: str = "") -> str:
        return f"gs://{self.name}/{key}"

    def put(self, key: str, content: bytes) -> str:
        """Returns its URL."""
        self._ask("POST", f"/upload/storage/v1/b/{self.name}/o?uploadType=media&name={quote(key, '')}", content)
        return self.url(key)

    def get(self, key: str) -> bytes:
        return self._ask("GET", f"/download/storage/v1/b/{self.name}/o/{quote(key, '')}?alt=media")

    def remove(self, key: str) -> None:
        self._ask("DELETE", f"/storage/v1/b/{self.name}/o/{quote(key, '')}")

    def names(self, prefix: str = "") -> list[str]:
        return sorted(self._told(prefix))

    def generation(self, key: str) -> str:
        return str(self._told(key)[key]["generation"])

    def asked(self, method: str, key: str = "") -> list[str]:
        """Requests so far for what has a key that begins so."""
        return [one for one in self.server.requests if one.startswith(f"{method} {self.name}/{key}")]

    def _told(self, prefix: str) -> dict[str, dict[str, Any]]:
        found = json.loads(self._ask("GET", f"/storage/v1/b/{self.name}/o?prefix={quote(prefix, '')}"))
        return {one["name"]: one for one in found.get("items", ())}

    def _ask(self, method: str, path: str, body: bytes | None = None, kind: str = "application/octet-stream") -> bytes:
        headers = {"Content-Type": kind, "User-Agent": "the test's own"}
        with urlopen(Request(self.server.address + path, body, headers, method=method), timeout=60) as answer:
            content: bytes = answer.read()
            return content


def _named(found: GoogleServer, method: str, path: str, body: bytes) -> str:
    """A request as ``GoogleServer`` has it."""
    parts = urlsplit(path)
    query, (_, bucket, of_objects, key) = parse_qs(parts.query), _PATH.fullmatch(parts.path).groups()  # type: ignore[union-attr]
    if parts.path.startswith("/upload/"):
        if (number := query.get("upload_id")) is not None:
            return f"PART {found.began.get(number[0], '')}"
        name = query["name"][0] if "name" in query else json.loads(body.split(b"\n\n", 2)[1].split(b"\n--")[0])["name"]
        return f"PUT {bucket}/{name}"
    if parts.path.startswith("/download/"):
        return f"GET {bucket}/{unquote(key)}"
    if method == "GET":
        prefix = query.get("prefix", [""])[0]
        return f"LIST {bucket}/{prefix}" if of_objects and not key else f"LOOK {bucket}/{unquote(key or '')}"
    return f"{method} {bucket}/{unquote(key or '')}"


_PATH = re.compile(r"/((?:upload/|download/)?storage/v1)/b(?:/([^/]+)(?:(/o)(?:/(.*))?)?)?")


@contextmanager
def google_server() -> Iterator[GoogleServer]:
    """Variables of the caller lead to it. Skips the test where gcsfs or the emulator is missing."""
    pytest.importorskip("gcsfs", reason="needs the extra gcs")
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="needs gcp-storage-emulator")
    from gcp_storage_emulator.storage import Storage

    found = GoogleServer()

    class Handler(emulator.RequestHandler):  # type: ignore[misc, name-defined]
        def _asked(self, answer: Callable[[], None]) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.rfile = io.BytesIO(body)
            request = _named(found, self.command, self.path, body)
            fault = None
            if self.headers["User-Agent"] != "the test's own":
                found.requests.append(request)
                fault = found.fault(request)
            if fault is None:
                answer()
            elif fault == "cut":
                self.close_connection = True
            else:
                status, _, message = fault.partition(" ")
                content = json.dumps({"error": {"code": int(status), "message": f"{message}: token ya29.SECRET"}})
                self.send_response(int(status))
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content.encode())

        def send_header(self, keyword: str, value: str) -> None:
            if keyword.lower() == "location" and "upload_id=" in value:
                number = parse_qs(urlsplit(value).query)["upload_id"][0]
                found.began[number] = found.requests[-1].partition(" ")[2]
            super().send_header(keyword, value)

        def do_GET(self) -> None:
            self._asked(super().do_GET)

        def do_POST(self) -> None:
            self._asked(super().do_POST)

        def do_PUT(self) -> None:
            self._asked(super().do_PUT)

        def do_DELETE(self) -> None:
            self._asked(self._given_up if self.path.startswith("/upload/") else super().do_DELETE)

        def _given_up(self) -> None:
            """An upload in pieces, as Google answers it; the emulator does not."""
            self.send_response(499)
            self.send_header("Content-Length", "0")
            self.end_headers()

    class Quiet(HTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Who asked has gone: of two questions at once one answer is enough."""

    server = Quiet(("127.0.0.1", 0), partial(Handler, Storage(use_memory_fs=True)))
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    found.address = f"http://127.0.0.1:{server.server_port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", found.address)
        patch.setenv("NO_GCE_CHECK", "true")
        for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"):
            patch.delenv(name, raising=False)
        patch.setenv("CLOUDSDK_CONFIG", "nowhere")
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
