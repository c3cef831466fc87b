"""Repositories of the hub, by a stand-in for it on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfFileSystem
from safetensors.torch import load, load_file
from stand_in_hub import Hub, hub_server

from tvae.pipeline.errors import UsageError

Run = Callable[..., Any]
URL = "hf://datasets/me/photos"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server() as found:
        here = partialmethod(HfFileSystem.__init__, endpoint=found.address)  # HF_ENDPOINT is read on import alone
        monkeypatch.setattr(HfFileSystem, "__init__", here)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        yield found


def test_photos(run: Run, picture: Callable[..., Path], hub: Hub, tmp_path: Path) -> None:
    for n in range(2):
        hub.files[f"in/{n}.png"] = picture(f"photos/{n}.png", seed=n).read_bytes()
    hub.files["in/sub/2.png"] = hub.files["in/1.png"]
    run("encode", tmp_path / "photos", output=tmp_path / "here")
    finished, events = run("encode", f"{URL}/in", output=f"{URL}/out")
    assert finished.done == 2, events
    assert sorted(str(event.output) for event in events if event.type == "item_done") == [
        f"{URL}/out/{n}.png.safetensors" for n in range(2)
    ]
    for n in range(2):
        there, here = load(hub.files[f"out/{n}.png.safetensors"]), load_file(tmp_path / f"here/{n}.png.safetensors")
        assert there["latents"].equal(here["latents"])
    asked = len(hub.requests)
    assert run("encode", f"{URL}/in", output=f"{URL}/out")[0].skipped == 2
    assert not [one for one in hub.requests[asked:] if "/in/" in one and "resolve" in one]
    assert not [one for one in hub.requests[asked:] if "/commit/" in one]
    finished, _ = run("encode", f"{URL}/in/**/*.png", output=tmp_path / "all")
    assert finished.done == 3
    hub.files["in/1.png"] = hub.files["in/0.png"]
    finished, _ = run("encode", f"{URL}/in", output=f"{URL}/out")
    assert (finished.done, finished.skipped) == (1, 1)


def test_a_clip(run: Run, clip: Callable[..., Path], hub: Hub, tmp_path: Path) -> None:
    hub.files["in/c.mkv"] = clip("c.mkv").read_bytes()
    assert run("encode", f"{URL}/in/c.mkv", output=f"{URL}/out")[0].done == 1
    assert sorted(hub.files) == ["in/c.mkv", "out/c.mkv.latents/000000.safetensors", "out/c.mkv.latents/index.json"]
    assert run("decode", f"{URL}/out", output=tmp_path / "films")[0].done == 1
    assert [path.name for path in (tmp_path / "films").iterdir()] == ["c.mkv.mp4"]


@pytest.mark.parametrize("url", ["hf://datasets/me/none/a.png", f"{URL}/none.png"])
def test_what_is_not_there(run: Run, hub: Hub, url: str, tmp_path: Path) -> None:
    hub.files["a.png"] = b"x"
    with pytest.raises(UsageError, match="does not exist"):
        run("encode", url, output=tmp_path / "out")


def test_a_repository_that_is_not_there(run: Run, picture: Callable[..., Path], hub: Hub) -> None:
    with pytest.raises(UsageError, match=r"^cannot write to hf://datasets/me/none/out: hf://datasets/me/none does not"):
        run("encode", picture("a.png"), output="hf://datasets/me/none/out")
