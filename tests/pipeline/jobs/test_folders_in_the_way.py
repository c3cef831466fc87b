"""A folder or a pipe where a result would go: it stays, and the line names it and not a file of tvae's own."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_vaes import saved
from clips import write_clip
from PIL import Image
from program import invoke

from tvae.pipeline.caches import Buckets, CacheRequest
from tvae.pipeline.files.atomic import publish
from tvae.pipeline.jobs import ItemFailed, Job, run_job


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return saved("sdxl", tmp_path_factory.mktemp("sdxl"))


@pytest.mark.long
@pytest.mark.parametrize("existing", ["skip", "overwrite"])
@pytest.mark.parametrize("operation", ["encode", "cache", "decode", "roundtrip"])
@pytest.mark.parametrize("done", [False, True])
def test_it_is_named(sdxl: Any, operation: Any, existing: Any, done: bool, tmp_path: Path) -> None:
    Image.fromarray(np.zeros((64, 96, 3), np.uint8)).save(tmp_path / "a.png")
    vae, out = str(sdxl.folder), tmp_path / "out"
    cache = CacheRequest("kohya", buckets=Buckets(True, 32, 128, 32)) if operation == "cache" else None
    source = tmp_path / "a.png"
    if operation == "decode":
        source = tmp_path / "a.png.safetensors"
        run_job(Job("encode", (str(tmp_path / "a.png"),), output=str(tmp_path), vae=vae), lambda _: None)
    name = {"encode": "a.png.safetensors", "cache": "a_0096x0064_sdxl.npz"}.get(operation, "a.png")
    job = Job(operation, (str(source),), output=str(out), vae=vae, existing=existing, cache=cache)
    if operation == "cache":
        job = Job(operation, job.inputs, output=str(out), vae=vae, existing=existing, cache=cache, size=(64, 64))
    if done:
        run_job(job, lambda _: None)
        (out / name).unlink()
    (out / name / "inside").mkdir(parents=True)
    failed: list[ItemFailed] = []
    run_job(job, lambda event: failed.append(event) if isinstance(event, ItemFailed) else None)
    (one,) = failed
    assert f"cannot write {out / name}: it is a folder; move it away" in one.error
    assert (out / name / "inside").is_dir()
    assert [path.name for path in out.rglob("*") if path.name.endswith(".tmp")] == []


def test_a_file_does_not_take_a_folders_name(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b" / "c").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        publish(tmp_path / "a", tmp_path / "b")


@pytest.mark.skipif(os.name == "nt", reason="needs named pipes")
@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("encode", "out.safetensors"),
        ("decode", "out.png"),
        ("roundtrip", "out.png"),
        pytest.param("decode", "out.mp4", marks=pytest.mark.long),
        pytest.param("roundtrip", "out.mp4", marks=pytest.mark.long),
    ],
)
def test_a_pipe_is_refused(operation: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = "a.mkv" if name.endswith(".mp4") else "a.png"
    if source == "a.mkv":
        write_clip(Path(source), frames=3, sound=False)
    else:
        Image.fromarray(np.zeros((64, 96, 3), np.uint8)).save(source)
    if operation == "decode":
        assert invoke(["encode", source, "-o", "."]).exit_code == 0
        (source,) = (path.name for path in Path().iterdir() if path.name != source)
    os.mkfifo(name)
    result = invoke([operation, source, "-o", name])
    assert result.exit_code == 3
    assert f"{name}: it is a device or a pipe; move it away, or name another output" in result.stderr
    assert stat.S_ISFIFO(os.stat(name).st_mode)
