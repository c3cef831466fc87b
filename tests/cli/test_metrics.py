"""Counts for Prometheus: what is served while a batch runs."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tvae.cli.metrics import MetricsServer
from tvae.cli.render import Display
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, ItemSkipped, Notice, RunStarted

Tvae = Callable[..., Result]
LINE = re.compile(r'(# (HELP|TYPE) [a-z_]+ .+|[a-z_]+(\{[a-z]+="[a-z]+"\})? [0-9.]+)')


def served(port: int, path: str = "/metrics") -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    assert all(LINE.fullmatch(line) for line in text.splitlines())
    values = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in values}


def test_counts() -> None:
    path = Path("x")
    with MetricsServer(0) as server:
        assert served(server.port)['tvae_items_ended_total{state="done"}'] == 0
        server.tell(RunStarted("encode", 4))
        server.tell(ItemDone(path, 0, path, 17, 0.5))
        server.tell(ItemDone(path, 1, path, 1, 0.5))
        server.tell(ItemSkipped(path, 2, path, "done already"))
        server.tell(Notice(path, 3, "odd"))
        server.tell(ItemFailed(path, 3, "bad"))
        found = served(server.port)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            served(server.port, "/")
    assert [found[f'tvae_items_ended_total{{state="{one}"}}'] for one in ("done", "skipped", "failed")] == [2, 1, 1]
    assert (found["tvae_items_begun_total"], found["tvae_frames_total"], found["tvae_warnings_total"]) == (4, 18, 1)
    with pytest.raises(OSError, match=r"refused|10061"):
        served(server.port)


def test_a_batch_serves_them(tvae: Tvae, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "job.toml").write_text(
        f'operation = "encode"\ninputs = "{photo.name}"\noutput = "out"\n', encoding="utf-8"
    )
    seen: list[float] = []
    shown = Display.show

    def show(self: Display, event: Event) -> None:
        shown(self, event)
        if isinstance(event, ItemDone):
            seen.append(served(port)["tvae_items_begun_total"])

    monkeypatch.setattr(Display, "show", show)
    assert tvae("batch", tmp_path / "job.toml", "--metrics-port", port).exit_code == 0
    assert seen == [1]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = tvae("batch", tmp_path / "job.toml", "--metrics-port", taken.getsockname()[1])
    assert result.exit_code == 2
    assert "cannot listen on port" in result.stderr
