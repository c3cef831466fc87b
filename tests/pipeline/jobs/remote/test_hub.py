"""Repositories of the hub, by a stand-in for it on this machine."""

from __future__ import annotations

import builtins
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi
from huggingface_hub.utils import are_progress_bars_disabled
from program import invoke
from safetensors.torch import load, load_file
from stand_in_hub import Hub

from tvae.pipeline.errors import UsageError
from tvae.pipeline.stores import Store, StoreError, parse_url
from tvae.pipeline.stores import hub as store_of_the_hub

Run = Callable[..., Any]
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
"""huggingface_hub's, of httpx."""
URL = "hf://datasets/me/photos"


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


def failures(events: list[Any]) -> list[str]:
    return [event.error for event in events if event.type == "item_failed"]


def test_commits_do_not_overtake_one_another(
    run: Run, picture: Callable[..., Path], hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are sent by several threads. None shows a progress bar, and afterwards the setting is as it was."""
    before, bars, commit = are_progress_bars_disabled(), list[bool](), HfApi.create_commit

    def watched(*args: Any, **options: Any) -> object:
        bars.append(not are_progress_bars_disabled())
        return commit(*args, **options)

    monkeypatch.setattr(HfApi, "create_commit", watched)
    for n in range(8):
        picture(f"in/{n}.png", seed=n)
    hub.commit_seconds = 0.02
    assert run("encode", tmp_path / "in", output=f"{URL}/out")[0].done == 8
    assert len(hub.commits()) == 8
    assert hub.overtaken == 0
    assert bars == [False] * 8
    assert are_progress_bars_disabled() == before


def test_a_commit_that_another_program_overtakes(
    run: Run, picture: Callable[..., Path], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def others(request: str) -> str | None:
        tries.extend([request] if "/commit/" in request else [])
        return (
            ("412 Precondition", "409 Conflict")[len(tries) - 1] if "/commit/" in request and tries[2:] == [] else None
        )

    hub.fault = others
    monkeypatch.setattr(store_of_the_hub, "WAITS", (0.0,) * 5)
    assert run("encode", picture("a.png"), output=f"{URL}/out")[0].done == 1
    assert len(tries) == 3
    hub.fault = lambda request: "412 Precondition" if "/commit/" in request else None
    finished, events = run("encode", picture("b.png"), output=f"{URL}/out")
    assert finished.failed == 1
    assert failures(events) == [f"cannot write {URL}/out/b.png.safetensors: the server answers 412; run again"]


@pytest.mark.parametrize(
    ("where", "fault", "message"),
    [
        ("POST /api/datasets/me/photos/commit", "403 no", "no permission; check HF_TOKEN"),
        ("POST /api/datasets/me/photos/commit", "429 slow", "the server answers 429; run again"),
        ("POST /api/datasets/me/photos/preupload", "401 no", "no permission; check HF_TOKEN"),
        ("PUT /large", "403 no", "no permission; check HF_TOKEN"),
    ],
)
def test_what_cannot_be_sent(
    run: Run,
    picture: Callable[..., Path],
    hub: Hub,
    where: str,
    fault: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Nothing is left of it, in the repository or here."""
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _seconds: None)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    hub.fault = lambda request: fault if request.startswith(where) else None
    finished, events = run("encode", picture("a.png"), output=f"{URL}/out")
    assert finished.failed == 1
    (told,) = failures(events)
    assert told.startswith(f"cannot write {URL}/out/a.png.safetensors: {message}")
    assert "hf_secret" not in told
    assert hub.names() == []
    assert [*(tmp_path / "temporary").iterdir()] == []
    assert capfd.readouterr().err == ""


def test_a_file_that_cannot_be_read_to_its_end(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of it is not committed."""
    source = tmp_path / "a.bin"
    source.write_bytes(bytes(12 << 20))
    opened = builtins.open

    class Torn(io.FileIO):
        def read(self, count: int = -1, /) -> bytes:
            if self.tell():
                raise OSError(5, "Input/output error")
            return super().read(8 << 20)

    def torn(name: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        return Torn(name) if str(name) == str(source) else opened(name, mode, *rest, **more)

    monkeypatch.setattr(builtins, "open", torn)
    monkeypatch.setattr(io, "open", torn)
    place = parse_url(f"{URL}/a.bin")
    with pytest.raises(StoreError):
        Store(place.kind).send(source, place.key)
    assert hub.names() == []


def test_one_file_of_many_is_asked_for_alone(hub: Hub) -> None:
    """A folder may have any number of files: it is not listed for each."""
    for n in range(3):
        hub.files[f"in/{n}.txt"] = b"x" * n
    place = parse_url(f"{URL}/in/2.txt")
    store = Store(place.kind)
    file, folder = store.look(place.key), store.look(place.key.rpartition("/")[0])
    assert file is not None
    assert folder is not None
    entry = hub.entry("in/2.txt")
    assert entry is not None
    assert (file.size, file.version, folder.is_folder) == (2, entry["oid"], True)
    assert store.look(f"{place.key}.none") is None
    assert not [one for one in hub.requests if "/tree/" in one]


@pytest.mark.parametrize(
    "words",
    [
        ["hf://datasets/me/set/a.png", "-o", "out"],
        ["own.png", "-o", "hf://datasets/me/set/out"],
        ["own.png", "-o", "out", "--vae", "org/vae"],
    ],
)
def test_offline(
    words: list[str], picture: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable is read when huggingface_hub is imported."""
    from huggingface_hub import constants

    picture("own.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    result = invoke(["encode", *words])
    assert result.exit_code == 2, result.stderr
    assert "HF_HUB_OFFLINE" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.long
def test_tests_start_without_the_users_variables() -> None:
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "", __file__, "-k", "test_photos or test_what_is_not_there"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(tests, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
