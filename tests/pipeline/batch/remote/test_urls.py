"""Job files with URLs among their inputs, and results in a store that are looked at: against moto's server."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clips import write_clip
from job_files import photo
from PIL import Image
from safetensors.numpy import load_file
from stores import Bucket, web_server

COUNT = 5
JOB = 'device = "cpu"\nbatch = 1\n[[step]]\noperation = "encode"\noutput = "latents"\n'


@pytest.fixture
def photos(bucket: Bucket, here: Path) -> str:
    for number in range(COUNT):
        bucket.put(f"in/{number}.png", photo(here / f"photos/{number}.png", number))
    return bucket.url("in")


def lines(folder: str = "latents") -> dict[str, dict[str, Any]]:
    told = [json.loads(line) for line in Path(folder, "manifest.jsonl").read_text().splitlines()]
    return {line["output"]: line for line in told}


def report() -> dict[str, Any]:
    (step,) = json.loads(Path("latents/report.json").read_text())["steps"]
    return dict(step)


def values(folder: str) -> dict[str, bytes]:
    """Of the latents: their headers say where the sources were."""
    return {path.name: load_file(path)["latents"].tobytes() for path in sorted(Path(folder).glob("*.safetensors"))}


@pytest.mark.slow
def test_the_same_latents_as_of_files(photos: str, bucket: Bucket, run: Any) -> None:
    Path("local.toml").write_text(JOB.replace('"latents"', '"local"') + 'inputs = "photos"\n')
    Path("job.toml").write_text(JOB + f'inputs = "{photos}"\n')
    run("batch", "local.toml", "-q")
    planned = run("batch", "job.toml", "--dry-run")
    assert f"{COUNT} planned" in planned.stdout
    assert bucket.asked("GET", "in/") == [], "a dry run fetches nothing"
    run("batch", "job.toml", "-q")
    assert values("latents") == values("local")
    assert len(values("latents")) == COUNT
    for name, line in lines().items():
        key = name.removesuffix(".safetensors")
        assert line["source"] == f"s3://{bucket.name}/in/{key}"
        assert line["source_bytes"] == len(bucket.get(f"in/{key}"))
        assert line["sha256"] == hashlib.sha256(Path("latents", name).read_bytes()).hexdigest()
    fetched = len(bucket.asked("GET", "in/"))
    again = run("batch", "job.toml", "--json")
    assert json.loads(again.stdout.splitlines()[-1])["steps"][0]["skipped"] == COUNT
    assert len(bucket.asked("GET", "in/")) == fetched, "what is done is not fetched"
    bucket.put("in/2.png", photo(Path("new.png"), 99))
    changed = run("batch", "job.toml", "--dry-run")
    assert "its source has changed" in changed.stdout
    run("batch", "job.toml", "-q")
    assert (report()["done"], report()["skipped"]) == (1, COUNT - 1)


@pytest.mark.slow
def test_lists_overrides_and_decode(photos: str, bucket: Bucket, run: Any) -> None:
    Path("list.txt").write_text(f"{photos}/0.png\nphotos/1.png\n{photos}/gone.png\n")
    Path("more.jsonl").write_text(json.dumps({"file": f"{photos}/3.png", "size": "64x48"}) + "\n")
    Path("job.toml").write_text(
        JOB
        + 'list = "list.txt"\njsonl = "more.jsonl"\n[[step]]\noperation = "decode"\ninputs = "latents"\noutput="back"\n'
    )
    done = run("batch", "job.toml", "--failed-list", "failed.txt", "--no-progress", code=3)
    assert f"s3://{bucket.name}/in/gone.png does not exist" in done.stderr
    assert Path("failed.txt").read_text().splitlines()[1:] == [f"s3://{bucket.name}/in/gone.png"]
    assert sorted(lines()) == [f"{n}.png.safetensors" for n in (0, 1, 3)]
    assert lines()["3.png.safetensors"]["tensors"]["latents"][1:] == [4, 8]
    assert sorted(lines("back")) == ["0.png", "1.png", "3.png"]
    bucket.put_folder(Path("latents"), "latents")
    Path("decode.toml").write_text(
        f'batch = 1\noperation = "decode"\ninputs = "{bucket.url("latents")}"\noutput = "again"\n'
    )
    assert "3 planned" in run("batch", "decode.toml", "--dry-run").stdout
    run("batch", "decode.toml", "-q")
    for name in lines("back"):
        again, back = (np.asarray(Image.open(Path(folder, name))) for folder in ("again", "back"))
        assert (again == back).all()
    again = run("batch", "decode.toml", "--dry-run", "--json")
    assert json.loads(again.stdout.splitlines()[-1])["steps"][0]["skipped"] == 3


CACHE = 'operation = "cache"\ninputs = "photos"\noutput = "{}"\ncache = {{trainer = "kohya", architecture = "sdxl"}}'
ENCODE = 'operation = "encode"\ninputs = "photos"\noutput = "{}"'


@pytest.mark.parametrize(
    ("last", "more"),
    [
        (CACHE, []),
        (CACHE, ["--dry-run"]),
        (ENCODE, ["--claim"]),
        ('operation = "verify"\ninputs = "latents"\nsource = "{}"', []),
        ('operation = "verify"\nsource = "photos"\ninputs = "{}"', []),
    ],
)
def test_what_a_store_cannot_do_is_refused_before_any_step(
    bucket: Bucket, here: Path, last: str, more: list[str], run: Any
) -> None:
    photo(here / "photos/a.png", 1)
    Path("job.toml").write_text(f"{JOB}inputs = 'photos'\n[[step]]\n{last.format(bucket.url('prefix'))}\n")
    asked = [*bucket.server.requests]
    done = run("batch", "job.toml", *more, code=2)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert bucket.url("prefix") in done.stderr
    assert not Path("latents").exists(), "the first step was not begun"
    assert bucket.server.requests == asked


@pytest.mark.parametrize(
    ("fault", "message"), [("404 NoSuchKey", "it does not exist"), ("cut", "the connection was lost")]
)
def test_a_source_that_disappears(photos: str, bucket: Bucket, fault: str, message: str, run: Any) -> None:
    wanted = f"GET /{bucket.name}/in/1.png"
    bucket.server.fault = lambda request: fault if request.startswith(wanted) else None
    Path("job.toml").write_text(JOB + f'inputs = "{photos}"\n')
    done = run("batch", "job.toml", "--no-progress", code=3)
    (line,) = [one for one in done.stderr.splitlines() if message in one]
    assert f"cannot read s3://{bucket.name}/in/1.png" in line
    assert (report()["done"], report()["failed"]) == (COUNT - 1, 1)
    (failure,) = report()["failures"]
    assert failure["source"] == f"s3://{bucket.name}/in/1.png"
    bucket.server.fault = lambda _request: None
    run("batch", "job.toml", "-q")
    assert (report()["done"], report()["skipped"]) == (1, COUNT - 1)


def test_web_servers(here: Path, run: Any) -> None:
    photo(here / "www/a.png", 1)
    with web_server(here / "www") as address:
        url = f"{address.replace('://', '://me:secret@')}/a.png?k=secret"
        Path("job.toml").write_text(JOB + f'inputs = "{url}"\n')
        run("batch", "job.toml", "-q")
        ((_, line),) = lines().items()
        assert line["source"] == f"{address}/a.png"
        told = run("inspect", url).stdout
    assert told.startswith(f"{address}/a.png: an image")
    assert "secret" not in told
    assert "secret" not in Path("latents/manifest.jsonl").read_text() + Path("latents/report.json").read_text()


def test_inspect(photos: str, bucket: Bucket, here: Path, run: Any) -> None:
    run("encode", "photos/0.png", "-o", "latents", "-q")
    url = bucket.put("one/0.png.safetensors", here / "latents/0.png.safetensors")
    told, local = (json.loads(run("inspect", name, "--json").stdout) for name in (url, "latents/0.png.safetensors"))
    assert told == local | {"path": url}
    assert run("inspect", f"{photos}/1.png").stdout.startswith(f"{photos}/1.png: an image")
    assert "does not exist" in run("inspect", f"{photos}/gone.png", code=2).stderr
    assert "is a folder" in run("inspect", photos, code=2).stderr
    bad = bucket.put("bad.png", b"no picture")
    assert bad in run("inspect", bad, f"{photos}/1.png", code=3).stderr


@pytest.mark.slow
def test_verify(bucket: Bucket, here: Path, run: Any) -> None:
    photo(here / "in/a.png", 1)
    photo(here / "in/b.png", 2)
    write_clip(here / "in/c.mkv", 12, sound=False)
    run("encode", "in", "-o", "latents", "-q")
    url = bucket.put_folder(here / "latents", "latents")
    assert run("verify", url).stdout == "3 fine\n"
    assert run("verify", f"{url}/a.png.safetensors").stdout == "1 fine\n"
    whole = bucket.get("latents/b.png.safetensors")
    bucket.put("latents/b.png.safetensors", whole[:-1] + bytes([whole[-1] ^ 1]))
    bucket.put("latents/c.mkv.latents/000000.safetensors", b"")
    told = run("verify", url, code=4).stdout
    assert f"{url}/b.png.safetensors: damaged: its values or metadata are not those that were written" in told
    assert f"{url}/c.mkv.latents: damaged: '{url}/c.mkv.latents/000000.safetensors' is damaged" in told
    assert str(here) not in told  # of no copy
    assert run("verify", f"{url}/gone.safetensors", code=2).stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "why"),
    [("403 AccessDenied", "no permission"), ("404 NoSuchKey", "it does not exist"), ("cut", "the connection was lost")],
)
def test_what_cannot_be_fetched_is_not_damaged(bucket: Bucket, here: Path, fault: str, why: str, run: Any) -> None:
    photo(here / "in/a.png", 1)
    photo(here / "in/b.png", 2)
    run("encode", "in", "-o", "latents", "-q")
    url = bucket.put_folder(here / "latents", "latents")
    bucket.server.fault = lambda one: fault if one.startswith(f"GET /{bucket.name}/latents/a") else None
    told, counts = run("verify", url, code=3).stdout.splitlines()
    assert told.startswith(f"{url}/a.png.safetensors: unreadable: cannot read {url}/a.png.safetensors: {why}")
    assert sorted(counts.split(", ")) == ["1 fine", "1 unreadable"]
    states = [json.loads(line)["state"] for line in run("verify", url, "--json", code=3).stdout.splitlines()]
    assert states == ["unreadable", "fine"]
    bucket.put("latents/b.png.safetensors", b"")
    counts = run("verify", url, code=4).stdout.splitlines()[-1]
    assert sorted(counts.split(", ")) == ["1 damaged", "1 unreadable"]


@pytest.mark.long
def test_what_is_not_there_is_told_before_anything_is_read(bucket: Bucket, here: Path, run: Any) -> None:
    photo(here / "in/a.png", 1)
    run("encode", "in", "-o", "latents", "-q")
    url = bucket.put_folder(here / "latents", "latents")
    with web_server(here) as address:
        gone = f"{address}/gone.safetensors"
        for other in (gone, bucket.url("latents/gone.safetensors")):
            done = run("verify", url, other, code=2)
            assert (done.stdout, done.stderr.count("\n")) == ("", 1)
            assert f"{other} does not exist" in done.stderr
    done = run("verify", url, gone, code=2)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert f"cannot read {gone}: the server cannot be reached" in done.stderr
    assert bucket.asked("GET", "latents/") == []


def test_latents_of_an_interrupted_encode_are_incomplete(bucket: Bucket, here: Path, run: Any) -> None:
    Path("in").mkdir()
    write_clip(here / "in/c.mkv", 12, sound=False)
    run("encode", "in", "-o", "latents", "-q")
    Path("latents/c.mkv.latents/index.json").unlink()
    url = bucket.put_folder(here / "latents", "latents")
    assert f"{url}/c.mkv.latents: incomplete: " in run("verify", url, code=4).stdout
