"""Memory or threads that the system does not give cost the item, and are told as that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import ItemFailed

Run = Callable[..., Any]

_MEMORY = "out of memory: this process may take no more memory; raise its limit (ulimit -v), or free some"
_THREADS = "this process may start no more threads; raise its limits (ulimit -u, ulimit -v), or end others"
SHORTAGES = [
    (MemoryError(), _MEMORY),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"), _MEMORY),
    (RuntimeError("unable to mmap 7603470 bytes from file <a>: Cannot allocate memory (12)"), _MEMORY),
    (RuntimeError("can't start new thread"), _THREADS),
]
STAGES = {
    "read": ("encode", "look_up.on_host"),
    "written": ("encode", "encode.latents.write_image_latents"),
    "written as a picture": ("roundtrip", "roundtrip.restore"),
    "decoded": ("decode", "decode.restore"),
}


@pytest.mark.parametrize(("error", "told"), SHORTAGES)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("alone", [False, True])
def test_a_shortage_is_no_mistake(
    error: Exception,
    told: str,
    stage: str,
    alone: bool,
    run: Run,
    picture: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was an internal error; a single item ended the command with code 1."""
    operation, place = STAGES[stage]
    sources = [picture(f"{number}.png") for number in range(1 if alone else 3)]
    if operation == "decode":
        run("encode", *sources, output=tmp_path / "latents")
        sources = [tmp_path / "latents"]

    def failing(*_args: object, **_named: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(f"tvae.pipeline.jobs.{place}", failing)
        done, events = run(operation, *sources, output=tmp_path / "out")
    assert {event.error for event in events if isinstance(event, ItemFailed)} == {told}
    assert done.failed == (1 if alone else 3)
    assert not (tmp_path / "out").exists() or not [*(tmp_path / "out").iterdir()]
    done, _ = run(operation, *sources, output=tmp_path / "out")
    assert done.done == (1 if alone else 3)


def test_a_run_without_its_threads(run: Run, picture: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith("tvae-write"):
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(UsageError, match="no more threads"):
        run("encode", picture(), picture("b.png"), output=tmp_path / "out")
    assert started
    assert not any(thread.is_alive() for thread in started)
