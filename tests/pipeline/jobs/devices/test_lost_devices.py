"""A device that hangs, and a file that ends the process which opens it, cost themselves and no more."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tvae.pipeline.errors import RankError
from tvae.pipeline.jobs import DeviceLost, ItemDone, ItemFailed
from tvae.pipeline.jobs.devices import alive, run

Run = Callable[..., Any]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="signals of this kind do not exist there")]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once all devices are ready, two seconds of silence are too long."""
    work = run.DevicesRun._work

    def patched(self: run.DevicesRun) -> None:
        monkeypatch.setattr(alive, "SILENT_SECONDS", 2.0)
        work(self)

    monkeypatch.setattr(run.DevicesRun, "_work", patched)


@pytest.fixture
def photos(picture: Run, tmp_path: Path) -> Path:
    """The fourth is what something happens to."""
    for n in range(20):
        picture(f"in/{n:02d}.png", width=64 if n == 3 else 32, seed=n)
    return tmp_path / "in"


@pytest.mark.parametrize("mode", ["hangs", "stops"])
def test_a_device_that_hangs(mode: str, impatient: None, shared: Run, photos: Path, tmp_path: Path) -> None:
    done, events = shared("encode", photos, output=tmp_path / "out", mode=mode, batch=1)
    (lost,) = (event for event in events if isinstance(event, DeviceLost))
    assert lost.error == "its process gave no sign of life for 2 seconds"
    failed = [event for event in events if isinstance(event, ItemFailed)]
    assert 3 in {event.index for event in failed}
    assert all("run again" in event.error and lost.device in event.error for event in failed)
    assert done.done + done.failed == 20
    assert len(failed) < 8


def test_a_device_that_hangs_before_it_is_ready(
    monkeypatch: pytest.MonkeyPatch, shared: Run, photos: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(alive, "SILENT_SECONDS", 0.0)  # nobody starts as fast
    with pytest.raises(RankError, match=r"cpu:\d cannot be used: its process gave no sign of life"):
        shared("encode", photos, output=tmp_path / "out")


def test_a_long_call_that_gets_on(impatient: None, shared: Run, photos: Path, tmp_path: Path) -> None:
    """Three seconds a call, where two seconds of silence are too long."""
    for extra in [*photos.iterdir()][3:]:
        extra.unlink()
    done, events = shared("encode", photos, output=tmp_path / "out", mode="long", batch=1)
    assert done.done == 3
    assert not any(isinstance(event, DeviceLost) for event in events)


def test_a_file_that_crashes_what_opens_it(shared: Run, photos: Path, tmp_path: Path) -> None:
    """One device; the next opens it, and what else was open then, in a process of its own."""
    done, events = shared("encode", photos, output=tmp_path / "out", mode="crashes", batch=1)
    (lost,) = (event for event in events if isinstance(event, DeviceLost))
    assert "SIGKILL" in lost.error
    assert done.done + done.failed == 20
    (ended,) = (event for event in events if isinstance(event, ItemDone | ItemFailed) and event.index == 3)
    assert isinstance(ended, ItemDone), "the decoder's own process opens it: only the device's process crashes"


@pytest.mark.parametrize("sandbox", ["auto", "off"])
def test_a_file_that_crashes_two_devices(sandbox: str, shared: Run, photos: Path, tmp_path: Path) -> None:
    """It fails alone, and the third device does the rest."""
    more = {"mode": "crashes-anywhere", "count": 3, "sandbox": sandbox, "batch": 1}
    done, events = shared("encode", photos, output=tmp_path / "out", **more)
    lost = [event for event in events if isinstance(event, DeviceLost)]
    assert len(lost) == 2
    (failed,) = (event for event in events if isinstance(event, ItemFailed) and event.index == 3)
    assert failed.error.startswith(f"{photos / '03.png'}: a second device was lost that opened it, {lost[1].device} (")
    assert "\n" not in failed.error
    assert done.done + done.failed == 20
