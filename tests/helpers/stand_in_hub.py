"""A small stand-in for the Hugging Face hub: one repository of a data set, its files, listing, reading and commits."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["Hub", "hub_server"]


class Hub:
    """``files``: content by path. ``requests``: what was asked, as ``METHOD /path``."""

    repository = "me/photos"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.address = ""

    def entry(self, path: str) -> dict[str, Any] | None:
        """As the hub tells it; None for what is not there."""
        if path in self.files:
            content = self.files[path]
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            return {"type": "file", "path": path, "size": len(content), "oid": blob}
        if any(name.startswith(f"{path}/") for name in self.files):
            return {"type": "directory", "path": path, "oid": "0" * 40}
        return None

    def tree(self, folder: str, recursive: bool) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        prefix = f"{folder}/" if folder else ""
        for name in sorted(self.files):
            if not name.startswith(prefix):
                continue
            parts = name.removeprefix(prefix).split("/")
            for depth in range(1, len(parts) + 1) if recursive else (1,):
                path = prefix + "/".join(parts[:depth])
                entry = self.entry(path)
                assert entry is not None
                found[path] = entry
        return [*found.values()]


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def _answer(self, value: Any, status: int = 200, **headers: str) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _missing(self, code: str) -> None:
        self._answer({"error": code}, 404, X_Error_Code=code)

    def _get(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        api, base = f"/api/datasets/{self.hub.repository}", f"/datasets/{self.hub.repository}/resolve/main/"
        if path in (api, f"{api}/revision/main"):
            self._answer({"id": self.hub.repository, "sha": "0" * 40, "siblings": [], "private": False, "tags": []})
        elif path.startswith(f"{api}/tree/main"):
            folder = path.removeprefix(f"{api}/tree/main").strip("/")
            if folder and self.hub.entry(folder) is None:
                self._missing("EntryNotFound")
            else:
                self._answer(self.hub.tree(folder, "recursive=True" in self.path or "recursive=true" in self.path))
        elif path.startswith(base) and path.removeprefix(base) in self.hub.files:
            content = self.hub.files[path.removeprefix(base)]
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if wanted is None:
                self._answer(content, ETag='"x"', X_Repo_Commit="0" * 40)
            else:
                start, end = int(wanted[1]), int(wanted[2] or len(content) - 1)
                part = content[start : end + 1]
                where = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
                self._answer(part, 206, ETag='"x"', X_Repo_Commit="0" * 40, Content_Range=where)
        else:
            self._missing("EntryNotFound" if self.hub.repository in path else "RepoNotFound")

    do_GET = do_HEAD = _get

    def do_POST(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"POST {path}")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "/paths-info/" in path:
            entries = (self.hub.entry(one) for one in json.loads(body)["paths"])
            self._answer([entry for entry in entries if entry is not None])
        elif "/preupload/" in path:
            names = [one["path"] for one in json.loads(body)["files"]]
            self._answer({"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]})
        elif "/commit/" in path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "deletedFile":
                    self.hub.files.pop(line["value"]["path"])
            url = f"{self.hub.address}/datasets/{self.hub.repository}/commit/{'1' * 40}"
            self._answer({"commitUrl": url, "commitOid": "1" * 40})
        else:
            self._missing("EntryNotFound")


@contextmanager
def hub_server() -> Iterator[Hub]:
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
