"""Results that are there and cannot be read: they are not taken for another program's, nor for done."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cache_vaes import saved

from tvae.pipeline.caches import CacheRequest
from tvae.pipeline.jobs import ItemFailed, ItemSkipped, Job, run_job
from tvae.pipeline.jobs.passing import may_pass

Run = Callable[..., Any]


@pytest.fixture(params=[errno.EACCES, errno.EIO, errno.ESTALE], ids=errno.errorcode.get)
def number(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def shut(patch: pytest.MonkeyPatch, path: Path, number: int) -> None:
    """From now on the system cannot open this file. (Rights do not stop who may do anything.)"""
    real = os.open

    def opened(name: Any, *args: Any, **named: Any) -> int:
        if not isinstance(name, int) and os.path.abspath(os.fspath(name)) == str(path):
            raise OSError(number, os.strerror(number), str(path))
        return real(name, *args, **named)

    patch.setattr(os, "open", opened)


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".mkv"])
@pytest.mark.parametrize("operation", ["encode", "decode", "roundtrip"])
def test_it_fails_its_item_alone(
    operation: str, suffix: str, number: int, picture: Run, clip: Run, run: Run, tmp_path: Path, monkeypatch: Any
) -> None:
    if operation == "encode" and suffix == ".mkv":
        pytest.skip("a folder, whose parts are read one by one")
    (tmp_path / "in").mkdir()
    make = clip if suffix == ".mkv" else picture
    sources = [make(f"in/a{suffix}"), make(f"in/b{suffix}")]
    if operation == "decode":
        run("encode", *sources, output=tmp_path / "latents")
        sources = sorted((tmp_path / "latents").iterdir())
    again = lambda: run(operation, *sources, output=tmp_path / "out")  # noqa: E731
    again()
    (first, second) = sorted((tmp_path / "out").iterdir())
    before = first.read_bytes()
    with monkeypatch.context() as patch:
        shut(patch, first, number)
        done, events = again()
    assert (done.failed, done.skipped) == (1, 1)
    (failed,) = (event for event in events if isinstance(event, ItemFailed))
    assert failed.error.startswith(f"cannot read {first}, which is there already: {os.strerror(number)}; ")
    assert may_pass(failed.cause) == (number != errno.EACCES)
    assert [event.output for event in events if isinstance(event, ItemSkipped)] == [second]
    assert first.read_bytes() == before
    assert again()[0].skipped == 2


@pytest.mark.parametrize("exact", [False, True])
def test_a_dry_run_says_so(exact: bool, number: int, picture: Run, run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    source = picture("a.png")
    run("encode", source, output=tmp_path / "out")
    (result,) = (tmp_path / "out").iterdir()
    with monkeypatch.context() as patch:
        shut(patch, result, number)
        done, _ = run("encode", source, output=tmp_path / "out", dry_run=True, exact=exact)
    assert done.failed == exact  # a dry run that is not exact opens no result


def test_overwrite_needs_no_reading(number: int, picture: Run, run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    """A new file takes the place of the old one."""
    source = picture("a.png")
    run("roundtrip", source, output=tmp_path / "out")
    (result,) = (tmp_path / "out").iterdir()
    with monkeypatch.context() as patch:
        shut(patch, result, number)
        done, _ = run("roundtrip", source, output=tmp_path / "out", existing="overwrite")
    assert done.done == 1


@pytest.mark.long
def test_a_record_beside_a_cache(number: int, picture: Run, tmp_path: Path, monkeypatch: Any) -> None:
    """Without it nothing tells whose the cached file is. It was said that tvae did not write it."""
    model = saved("sdxl", tmp_path / "vae")
    source = picture("a.png")
    cached = partial(Job, "cache", (str(source),), output=str(tmp_path / "out"), vae=str(model.folder), size=(64, 64))
    job = cached(cache=CacheRequest("kohya", "sdxl"))
    assert run_job(job, lambda _: None).done == 1
    (record,) = (tmp_path / "out").rglob("*.json")
    events: list[Any] = []
    with monkeypatch.context() as patch:
        shut(patch, record, number)
        run_job(job, events.append)
    (failed,) = (event for event in events if isinstance(event, ItemFailed))
    assert failed.error.startswith(f"cannot read {record}, which is there already: {os.strerror(number)}; ")
    assert run_job(job, lambda _: None).skipped == 1
