"""Which files URLs lead to, and what they are called."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slow_but import slow_but
from stores import Bucket, web_server

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Job
from tvae.pipeline.jobs.items import expand
from tvae.pipeline.jobs.job import Listed

Run = Callable[..., Any]
NAMES = (
    "a.png",
    "B.JPG",
    "notes.txt",
    ".hidden.png",
    "sub/c.mp4",
    "sub/.no/d.png",
    "sub/e.png.safetensors",
    "sub/f.mkv.latents/index.json",
    "sub/f.mkv.latents/000000.safetensors",
    "g [1].png",
    "deep/er/h.png",
)


@pytest.fixture
def tree(bucket: Bucket, tmp_path: Path) -> Path:
    """The same files in the bucket and in a folder."""
    for name in NAMES:
        path = tmp_path / "tree/photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        bucket.put(f"photos/{name}", b"x")
    return tmp_path / "tree"


@pytest.mark.parametrize("operation", ["encode", pytest.param("decode", marks=pytest.mark.slow)])
@pytest.mark.parametrize("recursive", slow_but([True], [False, True]))
@pytest.mark.parametrize(
    "names",
    [
        ["photos"],
        pytest.param(["photos/"], marks=pytest.mark.slow),
        pytest.param(["photos/sub"], marks=pytest.mark.slow),
        ["photos/*"],
        ["photos/**/*.png"],
        ["photos/*/*"],
        ["photos/[ab].*", "photos/deep/er/h.png"],
        pytest.param(["photos/sub/f.mkv.latents"], marks=pytest.mark.slow),
        ["photos/sub/f.mkv.latents/index.json"],
    ],
)
def test_as_a_folder_of_this_machine(
    names: list[str], recursive: bool, operation: Any, bucket: Bucket, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the same names of files here."""
    monkeypatch.chdir(tree)

    def found(*inputs: str) -> list[tuple[str, str, bool]]:
        try:
            job = Job(operation, inputs, recursive=recursive)
            return sorted((one.below.as_posix(), one.name, one.problem is None) for one in expand(job))
        except UsageError as error:
            return [(str(error).replace(bucket.url(), ""), "", False)]

    assert found(*map(bucket.url, names)) == found(*names)


def test_what_is_named_twice_is_there_once(bucket: Bucket, tree: Path) -> None:
    urls = bucket.url("photos/a.png"), bucket.url("photos/a.png"), str(tree / "photos/a.png")
    assert [str(one.path) for one in expand(Job("encode", urls))] == [urls[0], urls[2]]


def test_queries_tell_files_apart(tmp_path: Path) -> None:
    (tmp_path / "get").write_bytes(b"x")
    with web_server(tmp_path) as address:
        found = expand(Job("encode", (f"{address}/get?id=1", f"{address}/get?id=2", f"{address}/get?id=1")))
    assert len(found) == 2
    assert {str(one.path) for one in found} == {f"{address}/get"}


def test_listed_urls_fail_alone(bucket: Bucket, tree: Path) -> None:
    listed = [bucket.url("photos/a.png"), bucket.url("none.png"), "ftp://me:secret@host/a.png"]
    good, missing, other = expand(Job("encode", (), listed=tuple(map(Listed, listed))))
    assert good.problem is None
    assert missing.problem == f"{listed[1]} does not exist"
    assert other.problem is not None
    assert other.problem.startswith("ftp:// is not supported")
    assert "secret" not in f"{other}"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://{bucket}/none.png", "s3://{bucket}/none.png does not exist"),
        ("s3://{bucket}/*.bmp", "no file matches s3://{bucket}/*.bmp"),
        ("s3://no-such-bucket/a.png", "s3://no-such-bucket/a.png does not exist"),
        ("s3://", "s3:// names no bucket"),
        ("https:///a", "https:// names no server"),
        ("ftp://host/a.png", "ftp:// is not supported; use one of s3://, gs://, hf://, https://, http://"),
    ],
)
def test_what_is_not_there(url: str, message: str, bucket: Bucket) -> None:
    with pytest.raises(UsageError) as raised:
        expand(Job("encode", (url.format(bucket=bucket.name),)))
    assert str(raised.value).startswith(message.format(bucket=bucket.name))
    assert "secret" not in str(raised.value)


def test_archives_and_strange_names_are_problems(bucket: Bucket) -> None:
    bucket.put("in/a.tar", b"x")
    bucket.put("in/a\\b.png", b"x")
    (archive,) = expand(Job("encode", (bucket.url("in/a.tar"),)))
    assert archive.problem == f"{bucket.url('in/a.tar')}: archives are read from this machine only; download it"
    (strange,) = expand(Job("encode", (bucket.url("in"),)))
    assert strange.problem is not None
    assert "is no file name on every system" in strange.problem


def test_the_order_is_that_of_the_names(bucket: Bucket, tree: Path) -> None:
    found = expand(Job("encode", (bucket.url("photos"),)))
    assert [one.name for one in found] == sorted(one.name for one in found)
    assert os.sep not in "".join(one.name for one in found)
