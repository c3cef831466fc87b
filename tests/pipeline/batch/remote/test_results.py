"""Job files whose outputs go to an object store: results, manifest and report in it, against moto's server."""

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
from safetensors.numpy import load_file
from stored_jobs import COMMON, COUNT, counts, report
from stores import Bucket

from tvae.pipeline.batch import step_run, stored_manifest
from tvae.pipeline.batch.records import records_of

Run = Callable[..., Any]
Lines = Callable[..., dict[str, dict[str, Any]]]


@pytest.mark.long
def test_results_manifest_and_report_are_in_the_store(
    job: Path, bucket: Bucket, here: Path, run: Run, manifest: Lines
) -> None:
    local = job.read_text().replace(bucket.url("out/"), "")
    (here / "local.toml").write_text(local)
    run("batch", "local.toml", "-q")
    events = [json.loads(line) for line in run("batch", "job.toml", "--json").stdout.splitlines()]
    done = [event for event in events if event["type"] == "item_done"]
    assert sorted(event["output"] for event in done) == sorted(
        bucket.url(f"out/{folder}/{name}")
        for folder in ("latents", "back")
        for name in map(str, manifest(f"out/{folder}"))
    )
    for n in range(COUNT):
        name = f"{n}.png.safetensors"
        copy = here / f"copy{n}.safetensors"
        copy.write_bytes(bucket.get(f"out/latents/{name}"))
        assert (load_file(copy)["latents"] == load_file(here / f"latents/{name}")["latents"]).all()
        (here / "copy.png").write_bytes(bucket.get(f"out/back/{n}.png"))
        pictures = [np.asarray(Image.open(path)) for path in (here / "copy.png", here / f"back/{n}.png")]
        assert (pictures[0] == pictures[1]).all()
    for folder in ("latents", "back"):
        lines, here_too = (
            manifest(f"out/{folder}"),
            [json.loads(line) for line in (here / folder / "manifest.jsonl").read_text().splitlines()],
        )
        assert lines.keys() == {line["output"] for line in here_too}
        assert len(lines) == COUNT + 1
        for line in here_too:
            name = line["output"]
            key = f"out/{folder}/{name}" + ("/index.json" if name.endswith(".latents") else "")
            content = bucket.get(key)
            assert lines[name]["bytes"] == len(content)
            assert lines[name]["sha256"] == hashlib.sha256(content).hexdigest()
            assert lines[name]["version"] == hashlib.md5(content).hexdigest(), "S3's own of small objects"
            assert lines[name].keys() == line.keys() | {"version"}
            assert lines[name].get("tensors") == line.get("tensors")
        told = report(bucket, f"out/{folder}")
        assert (told["ended"], told["done"], told["output"]) == ("complete", COUNT + 1, bucket.url(f"out/{folder}"))
    assert not [path for path in here.iterdir() if path.name.startswith("s3:")]


@pytest.mark.slow
def test_a_run_that_is_repeated_opens_no_picture(
    job: Path, bucket: Bucket, run: Run, manifest: Lines, monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    """By the manifest; on another machine too, where the store's own copy of it is all there is."""
    run("batch", "job.toml", "-q")
    before = manifest("out/latents"), manifest("out/back")
    for machine in ("cache", "other"):
        if machine == "other":
            monkeypatch.setenv("XDG_CACHE_HOME", str(here / machine))
        alone = here / "alone.toml"
        alone.write_text(job.read_text().rpartition("[[step]]")[0])
        bucket.server.requests.clear()
        assert counts(run("batch", "alone.toml", "--json")) == [(0, COUNT + 1, 0)]
        assert [one for one in bucket.asked("GET", "out/latents/") if one.endswith(".png.safetensors")] == []
        assert counts(run("batch", "job.toml", "--json")) == [(0, COUNT + 1, 0)] * 2
        assert bucket.asked("PUT", "out/latents/manifest") == [], "nothing is new"
        assert (manifest("out/latents"), manifest("out/back")) == before
    planned = run("batch", "job.toml", "--dry-run", "--json")
    assert counts(planned) == [(0, COUNT + 1, 0)] * 2


@pytest.mark.slow
def test_new_and_changed_sources_and_outputs_that_went(
    job: Path, bucket: Bucket, here: Path, run: Run, manifest: Lines
) -> None:
    run("batch", "job.toml", "-q")
    photo(here / "in/1.png", 77)
    photo(here / "in/9.png", 9)
    bucket.client.delete_object(Bucket=bucket.name, Key="out/latents/2.png.safetensors")
    assert counts(run("batch", "job.toml", "--json")) == [(3, COUNT - 1, 0), (3, COUNT - 1, 0)]
    lines = manifest("out/latents")
    assert len(lines) == COUNT + 2
    for n in (1, 2, 9):
        content = bucket.get(f"out/latents/{n}.png.safetensors")
        assert lines[f"{n}.png.safetensors"]["sha256"] == hashlib.sha256(content).hexdigest()


@pytest.mark.slow
def test_outputs_without_a_line_get_one(
    job: Path, bucket: Bucket, run: Run, manifest: Lines, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a run whose machine is gone: what it had sent is not done again."""
    run("batch", "job.toml", "-q")
    folders = ("out/latents", "out/back")
    before = [manifest(folder) for folder in folders]
    for folder in folders:
        whole = bucket.get(f"{folder}/manifest.jsonl").splitlines(keepends=True)
        bucket.put(f"{folder}/manifest.jsonl", whole[0] + whole[1][:40])
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "other"))
    assert counts(run("batch", "job.toml", "--json")) == [(0, COUNT + 1, 0)] * 2
    told = ("bytes", "time", "version", "sha256", "fingerprint", "all_bytes", "tensors", "source")
    for lines, folder in zip(before, folders, strict=True):
        again = manifest(folder)
        assert again.keys() == lines.keys()
        for name, line in lines.items():
            assert {key: again[name].get(key) for key in told} == {key: line.get(key) for key in told}


@pytest.mark.slow
def test_what_this_machine_had_not_sent_counts(job: Path, bucket: Bucket, run: Run, manifest: Lines) -> None:
    """A run that was killed: its lines are here, the store has those of the run before."""
    run("batch", "job.toml", "-q")
    whole = bucket.get("out/latents/manifest.jsonl").splitlines(keepends=True)
    before = manifest("out/latents")
    bucket.put("out/latents/manifest.jsonl", b"".join(whole[:2]))
    ours = records_of(bucket.url("out/latents")) / "manifest.jsonl"
    ours.write_bytes(b"".join(whole[1:]) + whole[0][:30])
    bucket.server.requests.clear()
    job.write_text(job.read_text().rpartition("[[step]]")[0])
    run("batch", "job.toml", "-q")
    assert manifest("out/latents") == before
    assert [one for one in bucket.asked("GET", "out/latents/") if one.endswith("png.safetensors")] == []


@pytest.mark.slow
def test_a_copy_is_sent_while_the_run_goes_on(
    job: Path, bucket: Bucket, run: Run, manifest: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_manifest, "SEND_SECONDS", 0.0)
    run("batch", "job.toml", "-q")
    assert len(bucket.asked("PUT", "out/latents/manifest.jsonl")) >= 2
    assert len(manifest("out/latents")) == COUNT + 1


@pytest.mark.slow
def test_parts_overrides_and_retries(
    bucket: Bucket, here: Path, run: Run, manifest: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(8):
        photo(here / f"in/{n}.png", n)
    url = bucket.url("deep/out/")
    override = '[[step.override]]\nmatch = "3.png"\nsize = "64x48"\n'
    Path("job.toml").write_text(f'{COMMON}[[step]]\noperation = "encode"\ninputs = "in"\noutput = "{url}"\n{override}')
    failed = []

    def once(request: str) -> str | None:
        if request.startswith("PUT") and request.endswith("3.png.safetensors") and not failed:
            failed.append(request)
            return "503 SlowDown"
        return None

    bucket.server.fault = once
    monkeypatch.setattr(step_run, "waits", lambda retries: [0.0] * retries)
    for part in ("1/2", "2/2"):
        run("batch", "job.toml", "-q", "--shard", part, "--retries", "1")
    assert failed
    first, second = (manifest("deep/out", f"manifest-{n}-of-2.jsonl") for n in (1, 2))
    assert not first.keys() & second.keys()
    assert len(first) + len(second) == 8
    assert (first | second)["3.png.safetensors"]["tensors"]["latents"][1:] == [4, 8]
    assert len(json.loads(bucket.get("deep/out/report-1-of-2.json"))["steps"]) == 1


@pytest.mark.long
def test_one_file(bucket: Bucket, here: Path, run: Run, manifest: Lines) -> None:
    photo(here / "in/0.png", 0)
    Path("job.toml").write_text(
        f'{COMMON}operation = "roundtrip"\ninputs = "in/0.png"\noutput_file = "{bucket.url("x/a.png")}"\n'
    )
    run("batch", "job.toml", "-q")
    assert {*bucket.names("x/")} == {"x/a.png", "x/manifest.jsonl", "x/report.json"}
    assert manifest("x")["a.png"]["sha256"] == hashlib.sha256(bucket.get("x/a.png")).hexdigest()


@pytest.mark.long
def test_the_job_that_a_command_prints(bucket: Bucket, here: Path, run: Run, manifest: Lines) -> None:
    photo(here / "in/0.png", 0)
    said = run("encode", "in", "-o", bucket.url("said"), "--batch", "1", "--device", "cpu", "--print-config").stdout
    Path("job.toml").write_text(said)
    run("batch", "job.toml", "-q")
    assert [*manifest("said")] == ["0.png.safetensors"]


@pytest.mark.slow
def test_a_step_that_verifies(job: Path, bucket: Bucket, run: Run) -> None:
    both = f'inputs = ["{bucket.url("out/latents")}", "{bucket.url("out/back")}/"]'
    with job.open("a") as file:
        file.write(f'[[step]]\noperation = "verify"\n{both}\n')
    assert counts(run("batch", "job.toml", "--json"))[2] == (2 * COUNT + 2, 0, 0)
    content = bucket.get("out/back/1.png")
    bucket.put("out/back/1.png", content[:-1])
    bucket.client.delete_object(Bucket=bucket.name, Key="out/back/2.png")
    Path("check.toml").write_text(f'operation = "verify"\n{both}\n')
    told = run("batch", "check.toml", "--json", code=4)
    assert counts(told) == [(2 * COUNT, 0, 2)]
    shown = run("verify", bucket.url("out/back"), code=4).stdout
    assert f"{bucket.url('out/back/1.png')}: damaged: its content is not what was written" in shown
    assert f"{bucket.url('out/back/2.png')}: incomplete: it has gone" in shown
    assert f"{COUNT - 1} fine" in shown


def test_a_dry_run_of_what_an_earlier_step_makes(job: Path, bucket: Bucket, run: Run) -> None:
    told = run("batch", "job.toml", "--dry-run").stdout
    assert f"{COUNT + 1} planned" in told
    assert "the rest is what an earlier step makes" in told
    assert bucket.names() == []
