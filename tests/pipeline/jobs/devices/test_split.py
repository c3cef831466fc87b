"""When several devices share the rows of each item, and when whole items."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tvae.pipeline.caches.spec import CacheRequest
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Job
from tvae.pipeline.jobs.context import context_for
from tvae.pipeline.jobs.devices.split import shares_rows
from tvae.pipeline.jobs.items import expand
from tvae.pipeline.jobs.outputs import Claims, assign
from tvae.pipeline.jobs.vaes import Vaes
from tvae.pipeline.media.sandbox import Sandbox
from tvae.pipeline.session import sharing_pays

CPUS = ["cpu:0", "cpu:1", "cpu:2"]


def job(split: Any, operation: Any = "encode", inputs: tuple[str, ...] = ("a.png",), **more: Any) -> Job:
    return Job(operation, inputs, devices="3", split=split, **more)


def shared(wanted: Job, devices: list[str]) -> bool:
    first = Job(wanted.operation, wanted.inputs, device="cpu", vae=wanted.vae, size=wanted.size, cache=wanted.cache)
    items = assign(expand(wanted), wanted)
    with Sandbox("off") as sandbox:
        alone = context_for(first, Vaes(first), Claims(items), lambda _: None, sandbox, computes=False)
        return shares_rows(wanted, items, devices, alone)


def photos(folder: Path, *heights: int) -> str:
    folder.mkdir()
    for n, height in enumerate(heights):
        Image.fromarray(np.zeros((height, 64, 3), np.uint8)).save(folder / f"{n}.png")
    return str(folder)


@pytest.mark.parametrize(
    ("split", "heights", "devices", "rows"),
    [
        ("auto", (96, 96), CPUS, True),
        ("auto", (96, 8), CPUS, True),
        ("auto", (8, 8), CPUS, False),
        ("auto", (96, 96, 96), CPUS, False),
        ("auto", (), CPUS, False),
        ("auto", (96, 96), ["cuda:0", "cpu", "cpu"], False),
        ("auto", (96, 96), ["xpu:0", "xpu:1", "xpu:2"], False),
        ("items", (96,), CPUS, False),
        ("rows", (8,), CPUS, True),
        ("rows", (8,) * 9, CPUS, True),
        ("rows", (96,), ["cpu"], False),
    ],
)
def test_what_is_shared(
    split: str, heights: tuple[int, ...], devices: list[str], rows: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    """Two pictures that take as long: 2/3 of one's time in rows, if exchanges cost nothing. One of a single latent row
    cannot be shared."""
    monkeypatch.setattr(sharing_pays, "_SEGMENT_SECONDS", 0.0)
    if not heights:
        assert not shares_rows(job(split), [], devices, None)  # type: ignore[arg-type]
        return
    assert shared(job(split, inputs=(photos(tmp_path / "in", *heights),)), devices) == rows


@pytest.mark.parametrize(("seconds", "rows"), [(0.0, True), (4.5, False)])
def test_one_picture_pays_for_the_start(
    seconds: float, rows: bool, tmp_path: Path, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sharing_pays, "_SEGMENT_SECONDS", 0.0)
    monkeypatch.setattr(sharing_pays, "_START_SECONDS", seconds)
    with caplog.at_level(logging.INFO, "tvae"):
        assert shared(job("auto", inputs=(photos(tmp_path / "in", 96),)), CPUS) == rows
    (said,) = caplog.messages
    assert said.startswith(f"--split auto: {'rows of each item' if rows else 'whole items'} (about ")
    assert said.endswith("with rows on 3 devices)")
    assert said.endswith("device, 4.5 s to start with rows on 3 devices)") is not rows


def test_the_size_is_that_which_goes_in(tmp_path: Path, monkeypatch: Any) -> None:
    """After ``--size``; and both sides of a roundtrip count."""
    seen = list[Any]()
    plan = sharing_pays.expected

    def expected(calls: Any, *more: Any, **how: Any) -> Any:
        seen.append([alone().input_shape for alone, _ in calls])
        return plan(calls, *more, **how)

    monkeypatch.setattr(sharing_pays, "expected", expected)
    folder = photos(tmp_path / "in", 96)
    shared(job("auto", "roundtrip", inputs=(folder,), size=(32, 40)), CPUS)
    assert seen == [[(1, 3, 40, 32), (1, 16, 5, 4)]]


def test_what_cannot_be_read_is_the_items_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(b"no picture")
    with caplog.at_level(logging.INFO, "tvae"):
        assert not shared(job("auto", inputs=(str(tmp_path / "in"),)), CPUS)
    assert caplog.messages[0].startswith("--split auto: whole items (")


def test_rows_that_cannot_be() -> None:
    with pytest.raises(UsageError, match=r"different kinds \(cpu, cuda\) cannot share rows"):
        shares_rows(job("rows"), [], ["cuda:0", "cpu"], None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="kind xpu cannot share rows; name devices of one kind, cuda or cpu"):
        shares_rows(job("rows"), [], ["xpu:0", "xpu:1"], None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="pass --devices, too"):
        Job("encode", ("a.png",), split="rows")
    with pytest.raises(UsageError, match="split 'columns' is not one of auto, items, rows"):
        job("columns")


def test_a_cache_is_of_whole_items() -> None:
    request = CacheRequest("kohya")
    assert not shares_rows(job("auto", "cache", cache=request), [None], CPUS, None)  # type: ignore[arg-type,list-item]
    with pytest.raises(UsageError, match="made of whole items"):
        job("rows", "cache", cache=request)
