"""Numbers of a run for Prometheus (``--metrics-port``): its text format, over HTTP, for this machine alone."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tvae.pipeline import jobs
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs.events import ItemVerified

__all__ = ["MetricsServer"]

HOST = "127.0.0.1"
TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATES = {
    jobs.ItemDone: "done",
    jobs.ItemSkipped: "skipped",
    jobs.ItemFailed: "failed",
    jobs.ItemPlanned: "planned",
    ItemVerified: "verified",
}


class MetricsServer:
    """A context manager; give :meth:`tell` each event. port: 0 takes any that is free, see ``port``.

    Raises UsageError where the port cannot be had, before any work.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self._ended: Counter[str] = Counter(dict.fromkeys(_STATES.values(), 0))
        self._listed = self._frames = self._warnings = 0
        self._begin = time.monotonic()
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        told = self.text

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404)
                    return
                body = told().encode()
                self.send_response(200)
                self.send_header("Content-Type", TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Who asks is not told."""

        try:
            self._server = ThreadingHTTPServer((HOST, self.port), Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(f"cannot listen on port {self.port} of {HOST}: {error}; name another") from error
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, name="tvae-metrics", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None, "it was entered"
        self._server.shutdown()
        self._server.server_close()

    def tell(self, event: jobs.Event) -> None:
        """Counts it."""
        with self._lock:
            state = _STATES.get(type(event))
            if state is not None:
                self._ended[state] += 1
            match event:
                case jobs.RunStarted():
                    self._listed += event.items
                case jobs.ItemDone():
                    self._frames += event.frames
                case jobs.Notice():
                    self._warnings += 1

    def text(self) -> str:
        """All numbers as they are now."""
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield "# HELP tvae_items_ended_total Items of the batch that have ended, by how."
        yield "# TYPE tvae_items_ended_total counter"
        for state, count in self._ended.items():
            yield f'tvae_items_ended_total{{state="{state}"}} {count}'
        seconds = time.monotonic() - self._begin
        for name, kind, value, about in (
            ("tvae_items_begun_total", "counter", self._listed, "Items of the steps that have begun."),
            ("tvae_frames_total", "counter", self._frames, "Frames of the items that are done; an image has one."),
            ("tvae_warnings_total", "counter", self._warnings, "Warnings."),
            ("tvae_seconds", "gauge", f"{seconds:.3f}", "Seconds since the batch began."),
        ):
            yield f"# HELP {name} {about}"
            yield f"# TYPE {name} {kind}"
            yield f"{name} {value}"
