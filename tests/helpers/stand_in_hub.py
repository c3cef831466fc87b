"""A small stand-in for the Hugging Face hub: one repository of a data set, its files, listing, reading and commits.

Large files (``.safetensors``, ``.png``) come as Git LFS has them, others within their commit; there is no Xet. Of two
commits at the same time it refuses the later one, with the hub's own status.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partialmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

__all__ = ["Hub", "hub_server"]


_LARGE = (".safetensors", ".png")


class Hub:
    """``files``: content by path. ``requests``: what was asked, as ``METHOD /path``; a commit has the paths that it
    changes after it. ``fault``: for a request, the status and the words that it is answered with, or None.
    ``overtaken``: how many commits were refused. ``commit_seconds``: what each takes."""

    repository = "me/photos"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.large: dict[str, bytes] = {}
        """Content of large files, by their checksum."""
        self.requests: list[str] = []
        self.address = ""
        self.fault: Callable[[str], str | None] = lambda _request: None
        self.committing, self.overtaken, self.commit_seconds = threading.Lock(), 0, 0.0

    def url(self, key: str = "") -> str:
        return f"hf://datasets/{self.repository}/{key}"

    def put(self, key: str, content: bytes) -> str:
        """Returns its URL."""
        self.files[key] = content
        return self.url(key)

    def get(self, key: str) -> bytes:
        return self.files[key]

    def names(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self.files if name.startswith(prefix))

    def remove(self, key: str) -> None:
        del self.files[key]

    def commits(self) -> list[str]:
        """The paths that each has changed."""
        return [one.partition(" /api/")[2].partition(" ")[2] for one in self.requests if "/commit/" in one]

    def entry(self, path: str) -> dict[str, Any] | None:
        """As the hub tells it; None for what is not there."""
        if path in self.files:
            content = self.files[path]
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            large = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            lfs = {"lfs": large} if path.endswith(_LARGE) else {}
            return {"type": "file", "path": path, "size": len(content), "oid": blob, **lfs}
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
    disable_nagle_algorithm = True  # which waits 40 ms between an answer's head and its body

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
        if self._fails(f"{self.command} {path}"):
            return
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

    def _fails(self, request: str) -> bool:
        self.hub.requests.append(request)
        if (fault := self.hub.fault(request)) is None:
            return False
        status, _, words = fault.partition(" ")
        self._answer({"error": f"{words}: token hf_secret"}, int(status))
        return True

    def do_PUT(self) -> None:
        """A large file's content."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self._fails(f"PUT {self.path}"):
            self.hub.large[self.path.rpartition("/")[2]] = body
            self._answer({})

    def do_POST(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        changes = [*map(json.loads, body.splitlines())] if "/commit/" in path else []
        changed = sorted(line["value"]["path"] for line in changes if line["key"] != "header")
        if self._fails(" ".join((f"POST {path}", *changed))):
            return
        if "/paths-info/" in path:
            entries = (self.hub.entry(one) for one in parse_qs(body.decode())["paths"])
            self._answer([entry for entry in entries if entry is not None])
        elif "/preupload/" in path:
            names = [one["path"] for one in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(_LARGE) else "regular" for name in names}
            told = [{"path": name, "uploadMode": modes[name], "shouldIgnore": False} for name in names]
            self._answer({"files": told})
        elif path.endswith("/info/lfs/objects/batch"):
            wanted = [(one["oid"], one["size"]) for one in json.loads(body)["objects"]]
            href = f"{self.hub.address}/large"
            told = [{"oid": o, "size": n, "actions": {"upload": {"href": f"{href}/{o}"}}} for o, n in wanted]
            self._answer({"transfer": "basic", "objects": told})
        elif changes:
            self._commit(changes)
        else:
            self._missing("EntryNotFound")

    def _commit(self, changes: list[dict[str, Any]]) -> None:
        if not self.hub.committing.acquire(blocking=False):
            self.hub.overtaken += 1
            self._answer({"error": "A commit has happened since. Please refresh and try again."}, 412)
            return
        try:
            time.sleep(self.hub.commit_seconds)
            for line in changes:
                if line["key"] == "file":
                    self.hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "lfsFile":
                    self.hub.files[line["value"]["path"]] = self.hub.large[line["value"]["oid"]]
                elif line["key"] == "deletedFile":
                    self.hub.files.pop(line["value"]["path"])
        finally:
            self.hub.committing.release()
        url = f"{self.hub.address}/datasets/{self.hub.repository}/commit/{'1' * 40}"
        self._answer({"commitUrl": url, "commitOid": "1" * 40})


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Variables of the caller lead to it, and file systems of this process."""
    from huggingface_hub import HfFileSystem, constants

    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("HF_ENDPOINT", hub.address), ("HF_TOKEN", "hf_secret"), ("HF_HUB_DISABLE_XET", "1")):
            patch.setenv(name, value)
        # the variables are read on import alone
        patch.setattr(HfFileSystem, "__init__", partialmethod(HfFileSystem.__init__, endpoint=hub.address))
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
