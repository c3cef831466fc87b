"""When a run starts a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from tvae.pipeline.jobs import Job, vaes
from tvae.pipeline.jobs.run import _aside
from tvae.pipeline.jobs.vaes import OpenVaes, Vaes


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"device": "cpu"}, ["cpu"]),
        ({}, [None]),
        ({"dry_run": True}, []),
        ({"dry_run": True, "vram": "64MiB"}, [None]),  # is there so much?
    ],
)
def test_the_device_that_computes_starts_before_pytorch_is_imported(
    fields: dict[str, Any], asked: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str | None] = []
    monkeypatch.setattr(vaes, "begin_cuda", found.append)
    Vaes(Job("encode", ("a",), **fields)).check()
    assert found == asked


def test_a_process_whose_children_compute_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str | None] = []
    monkeypatch.setattr(vaes, "begin_cuda", found.append)
    Vaes(_aside(Job("encode", ("a",), device="cuda:1", vram="4GiB"))).check()
    assert found == ["cpu"]


@pytest.mark.parametrize("waits", [False, True])
def test_kernels_are_waited_for_where_the_job_says_so(waits: bool) -> None:
    run = Vaes(Job("encode", ("a",), device="cpu", wait_for_kernels=waits), opened=(opened := OpenVaes()))
    assert run.get("builtin").limits.wait_for_kernels == waits
    other = Vaes(Job("encode", ("a",), device="cpu", wait_for_kernels=not waits), opened=opened)
    assert other.get("builtin").limits.wait_for_kernels != waits
