"""Job files whose outputs go to Google's store or to a repository of the hub, as those of S3 do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from job_files import photo
from PIL import Image
from safetensors.numpy import load, load_file
from stored_jobs import COMMON, COUNT, counts, encoded_and_back, lines, report

from tvae.pipeline.batch.records import records_of

Run = Callable[..., Any]
Store = Any
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
"""huggingface_hub's, of httpx."""


@pytest.fixture(params=["google", "hub"])
def store(request: pytest.FixtureRequest) -> Store:
    return request.getfixturevalue(request.param)


@pytest.fixture
def job(store: Store, here: Path) -> Path:
    return encoded_and_back(store, here)


def version(store: Store, key: str) -> str:
    """As the store itself tells contents apart."""
    if hasattr(store, "generation"):
        return str(store.generation(key))
    entry = store.entry(key)
    return str(entry["lfs"]["oid"] if "lfs" in entry else entry["oid"])


@pytest.mark.long
def test_results_manifest_and_report(job: Path, store: Store, here: Path, run: Run) -> None:
    (here / "local.toml").write_text(job.read_text().replace(store.url("out/"), ""))
    run("batch", "local.toml", "-q")
    run("batch", "job.toml", "-q")
    for n in range(COUNT):
        name = f"{n}.png.safetensors"
        latents = load(store.get(f"out/latents/{name}"))["latents"]
        assert (latents == load_file(here / f"latents/{name}")["latents"]).all()
        (here / "copy.png").write_bytes(store.get(f"out/back/{n}.png"))
        pictures = [np.asarray(Image.open(path)) for path in (here / "copy.png", here / f"back/{n}.png")]
        assert (pictures[0] == pictures[1]).all()
    for folder in ("latents", "back"):
        found = lines(store, f"out/{folder}")
        assert found.keys() == {
            json.loads(line)["output"] for line in (here / folder / "manifest.jsonl").read_text().splitlines()
        }
        for name, line in found.items():
            key = f"out/{folder}/{name}" + ("/index.json" if name.endswith(".latents") else "")
            content = store.get(key)
            assert (line["bytes"], line["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
            assert line["version"] == version(store, key)
        told = report(store, f"out/{folder}")
        assert (told["ended"], told["done"], told["output"]) == ("complete", COUNT + 1, store.url(f"out/{folder}"))
    verified = f'operation = "verify"\ninputs = ["{store.url("out/latents")}", "{store.url("out/back")}"]\n'
    (here / "verify.toml").write_text(verified)
    assert counts(run("batch", "verify.toml", "--json")) == [(2 * (COUNT + 1), 0, 0)]


@pytest.mark.long
def test_what_is_done_is_skipped(
    job: Path, store: Store, here: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the manifest, on another machine too."""
    run("batch", "job.toml", "-q")
    before = [lines(store, folder) for folder in ("out/latents", "out/back")]
    for machine in ("cache", "other"):
        if machine == "other":
            monkeypatch.setenv("XDG_CACHE_HOME", str(here / machine))
        assert counts(run("batch", "job.toml", "--json")) == [(0, COUNT + 1, 0)] * 2
        assert [lines(store, folder) for folder in ("out/latents", "out/back")] == before
    assert counts(run("batch", "job.toml", "--dry-run", "--json")) == [(0, COUNT + 1, 0)] * 2


@pytest.mark.long
def test_one_item_changes(job: Path, store: Store, here: Path, run: Run) -> None:
    """A source, an output that went, and one that another program replaced: those alone are made."""
    run("batch", "job.toml", "-q")
    others = {name: store.get(name) for name in store.names("out/latents/3")}
    photo(here / "in/1.png", 77)
    store.remove("out/latents/2.png.safetensors")
    store.put("out/latents/0.png.safetensors", store.get("out/latents/1.png.safetensors"))
    assert counts(run("batch", "job.toml", "--json"))[0] == (3, COUNT - 2, 0)
    found = lines(store, "out/latents")
    for n in range(3):
        content = store.get(f"out/latents/{n}.png.safetensors")
        assert found[f"{n}.png.safetensors"]["sha256"] == hashlib.sha256(content).hexdigest()
        assert found[f"{n}.png.safetensors"]["version"] == version(store, f"out/latents/{n}.png.safetensors")
    assert {name: store.get(name) for name in others} == others


@pytest.mark.long
def test_outputs_without_a_line_get_one(
    job: Path, store: Store, here: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a run whose machine is gone."""
    run("batch", "job.toml", "-q")
    before = lines(store, "out/back")
    whole = store.get("out/back/manifest.jsonl").splitlines(keepends=True)
    store.put("out/back/manifest.jsonl", whole[0] + whole[1][:40])
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "other"))
    assert counts(run("batch", "job.toml", "--json")) == [(0, COUNT + 1, 0)] * 2
    again = lines(store, "out/back")
    for name, line in before.items():
        assert {key: again[name].get(key) for key in ("bytes", "version", "sha256", "fingerprint", "source")} == {
            key: line.get(key) for key in ("bytes", "version", "sha256", "fingerprint", "source")
        }


@pytest.mark.long
def test_a_store_that_takes_no_more(
    job: Path, store: Store, run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its items fail; the manifest, which it does not take either, stays here, and the next run sends it."""
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _seconds: None)
    full = ("latents/1.png.safetensors", "latents/manifest.jsonl")
    fault = "507 full" if hasattr(store, "generation") else "429 slow"
    sends = "PUT" if fault.startswith("507") else f"POST /api/datasets/{store.repository}/commit"
    holder = getattr(store, "server", store)
    holder.fault = lambda one: fault if one.startswith(sends) and one.endswith(full) else None
    done = run("batch", "job.toml", "--no-progress", code=3)
    told = done.stderr.splitlines()
    assert sum(f"cannot write {store.url('out/latents/1.png.safetensors')}" in line for line in told) == 1
    assert f"cannot write {store.url('out/latents/manifest.jsonl')}" in told[-1]
    assert str(records_of(store.url("out/latents"))) in told[-1]
    assert "Traceback" not in done.stderr + capfd.readouterr().err
    assert report(store, "out/latents")["ended"] == "error"
    holder.fault = lambda _request: None
    assert counts(run("batch", "job.toml", "--json"))[0] == (1, COUNT, 0)
    assert len(lines(store, "out/latents")) == COUNT + 1


@pytest.mark.parametrize(
    ("store", "output", "why"),
    [
        ("google", "gs://no-such-bucket-here/out", "gs://no-such-bucket-here does not exist"),
        ("hub", "hf://datasets/me/none/out", "hf://datasets/me/none does not exist"),
    ],
    indirect=["store"],
)
def test_outputs_that_cannot_be_written(store: Store, here: Path, run: Run, output: str, why: str) -> None:
    photo(here / "in/0.png", 0)
    Path("job.toml").write_text(f'{COMMON}operation = "encode"\ninputs = "in"\noutput = "{output}"\n')
    done = run("batch", "job.toml", code=2)
    assert why in done.stderr
    assert done.stderr.count("\n") == 1
